"""Lines about what fails again and again, for adapters: see :mod:`hexkv.core.notices`."""

from hexkv.core.notices import Notices

__all__ = ["Notices"]
