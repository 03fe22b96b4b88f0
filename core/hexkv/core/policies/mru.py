"""Most recently used: for workloads that sweep over more chunks than fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hexkv.core.policies._order import OneOrder
from hexkv.ports import ChunkKey


class MRU(OneOrder):
    """Evicts the chunk that was used last, so a cyclic sweep keeps a part of itself.

    Within one call the last key counts as used last, so it goes first. Across calls a parent may go
    before a child that was not used since: that is the meaning of most recent.
    """

    __slots__ = ()

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        del after
        for key in keys:
            self._order.put_below(None, key)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            self._order.remove(key)
            self._order.put_below(None, key)

    def victims(self) -> Iterator[ChunkKey]:
        return reversed(self._order)
