"""Least frequently used, and among equals the least recently used."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.core.policies._order import OneOrder
from hexkv.ports import ChunkKey


class LFU(OneOrder):
    """Evicts the chunk that was used least often since it was stored.

    After Shah, Mitra and Matani, "An O(1) algorithm for implementing the LFU cache eviction scheme"
    (arXiv:2110.11602), with the buckets laid end to end in one list: it is sorted by count, and the
    newest key of each count marks where the next one goes. Within a count the order is that of
    :class:`~hexkv.core.policies.lru.LRU`, so a parent is never worth less than its child. Counts
    are forgotten with the chunk.
    """

    __slots__ = ("_count", "_newest")

    def __init__(self) -> None:
        super().__init__()
        self._count: dict[ChunkKey, int] = {}
        self._newest: dict[int, ChunkKey] = {}

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        parent = after if after is not None and self._count.get(after) == 1 else None
        for key in reversed(keys):
            self._count[key] = 1
            if parent is not None:
                self._order.put_below(parent, key)
            else:
                self._order.put_above(self._newest.get(1), key)
                self._newest[1] = key

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        for key in reversed(keys):
            count = self._count[key]
            below = self._take(key)
            below = self._newest.get(count + 1, self._newest.get(count, below))
            self._order.put_above(below, key)
            self._count[key] = count + 1
            self._newest[count + 1] = key

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        del evicted
        self._take(key)
        del self._count[key]

    def _take(self, key: ChunkKey) -> ChunkKey | None:
        """Remove *key* from the order; return the next older key."""
        count = self._count[key]
        older = self._order.older(key)
        self._order.remove(key)
        if self._newest[count] == key:
            if older is not None and self._count[older] == count:
                self._newest[count] = older
            else:
                del self._newest[count]
        return older
