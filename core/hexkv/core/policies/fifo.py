"""First in, first out."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.core.policies._order import OneOrder
from hexkv.ports import ChunkKey


class FIFO(OneOrder):
    """Evicts the chunk that was stored longest ago; use does not matter.

    Chunks admitted in one call came at one moment, and of those the last goes first. Across calls a
    parent may go before its child: that is the meaning of first in, first out.
    """

    __slots__ = ()

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        del after
        for key in reversed(keys):
            self._order.put_below(None, key)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        pass
