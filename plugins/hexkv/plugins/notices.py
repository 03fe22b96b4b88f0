"""Log lines about repeated failures, for adapters: see :mod:`hexkv.core.notices`."""

from hexkv.core.notices import Notices

__all__ = ["Notices"]
