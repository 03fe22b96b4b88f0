"""The contract of directories: on one server, on several, or a double."""

from __future__ import annotations

from hexkv.contracts.directory._base import DirectoryCase
from hexkv.contracts.directory._entries import Entries
from hexkv.contracts.directory._lives import Lives
from hexkv.contracts.kit.whole import Whole

__all__ = ["DirectoryContract"]


class DirectoryContract(Entries, Lives, DirectoryCase, Whole):
    """Subclass this and give it the fixture ``seen``.

    ``seen(name)`` is the directory as one of the three nodes ``NODES`` sees it, empty at first: one
    object for each name, or one for all. Optional are ``elapse(seconds)``, which lets time pass for
    the directory, ``vanish(name)``, which ends a node without a farewell, ``forget()``, which has
    it lose everything, and ``stalled()``, a context in which no server answers.
    """
