"""First in, first out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hexkv.core.policies._order import Order
from hexkv.ports import ChunkKey


class FIFO:
    """Evicts the chunk that was stored longest ago; use does not matter.

    Chunks admitted in one call came at one moment, and of those the last goes first. Across calls a
    parent may go before its child: that is the meaning of first in, first out.
    """

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order = Order()

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        del after
        for key in reversed(keys):
            self._order.put_below(None, key)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        pass

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        del evicted
        self._order.remove(key)

    def victims(self) -> Iterator[ChunkKey]:
        return iter(self._order)
