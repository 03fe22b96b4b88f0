"""Least recently used, the end of a prompt first."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.core.policies._order import OneOrder
from hexkv.ports import ChunkKey


class LRU(OneOrder):
    """Evicts the chunk that was not used for longest.

    Within one call the last key counts as used first, and new chunks go in just below the chunk
    that they follow: a parent is never older than its child. So this is exactly LRU over the leaves
    of the prefix tree, without a tree.
    """

    __slots__ = ()

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        parent = after if after is not None and after in self._order else None
        self._order.put_run_below(parent, keys)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        if self._order.begins_with(keys):
            return  # a request is retrieved, then stored: the second call moves no chunk
        for key in reversed(keys):
            self._order.remove(key)
            self._order.put_below(None, key)
