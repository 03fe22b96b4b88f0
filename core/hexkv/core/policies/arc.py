"""Adaptive replacement: recency and frequency, in shares that evicted chunks adjust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hexkv.core.policies._order import Order
from hexkv.ports import ChunkKey


class ARC:
    """Evicts from the chunks used once or from those used again, in adaptive shares.

    After Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003). An
    index evicts before it admits, so the target moves for the eviction after; and a policy does not
    know the tier's size, so it takes the most chunks that the tier ever held. Within one call the
    last chunk counts as used first, and a chunk goes in just below the one that it follows, if both
    are in one list, as in :class:`~hexkv.core.policies.lru.LRU`.
    """

    __slots__ = ("_again", "_again_ghosts", "_most", "_once", "_once_ghosts", "_target")

    def __init__(self) -> None:
        self._once, self._again = Order(), Order()
        self._once_ghosts, self._again_ghosts = Order(), Order()
        self._target = 0.0
        """The target number of chunks that were used once."""
        self._most = 0

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        # From the beginning of the prompt on, so that each chunk finds its parent in place.
        parent = after
        for key in keys:
            order = self._recall(key)
            order.put_below(parent if parent is not None and parent in order else None, key)
            parent = key
        self._most = max(self._most, len(self._once) + len(self._again))

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        for key in reversed(keys):
            (self._once if key in self._once else self._again).remove(key)
            self._again.put_below(None, key)

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        once = key in self._once
        (self._once if once else self._again).remove(key)
        if not evicted:
            return
        (self._once_ghosts if once else self._again_ghosts).put_below(None, key)
        while self._once_ghosts and len(self._once) + len(self._once_ghosts) > self._most:
            self._once_ghosts.remove(next(iter(self._once_ghosts)))
        while len(self._once_ghosts) + len(self._again_ghosts) > self._most:
            ghosts = self._again_ghosts or self._once_ghosts
            ghosts.remove(next(iter(ghosts)))

    def victims(self) -> Iterator[ChunkKey]:
        once, again = iter(self._once), iter(self._again)
        left, others = len(self._once), len(self._again)
        while left or others:
            if left and (left > self._target or not others):
                left -= 1
                yield next(once)
            else:
                others -= 1
                yield next(again)

    def _recall(self, key: ChunkKey) -> Order:
        """Return the list that *key* goes to, after adapting the target to its ghost."""
        once, again = self._once_ghosts, self._again_ghosts
        if key in once:
            self._target = min(self._most, self._target + max(1.0, len(again) / len(once)))
            once.remove(key)
        elif key in again:
            self._target = max(0.0, self._target - max(1.0, len(once) / len(again)))
            again.remove(key)
        else:
            return self._once
        return self._again
