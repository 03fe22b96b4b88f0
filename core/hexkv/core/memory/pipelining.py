"""The number of chunks that one call moves at a time."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.core.memory.pool import BlockPool

_STEP_BYTES = 128 << 20
_STEPS_AHEAD = 4
_MOST = 64
_MOST_IN_MEMORY = 256


@dataclass(frozen=True, slots=True)
class Pipelining:
    """The number of chunks that a call copies at once, and that it has in progress."""

    step: int
    ahead: int

    run: int
    """The number of chunks copied at once without reads: from memory, and new ones."""

    @classmethod
    def of(cls, pool: BlockPool) -> Pipelining:
        """Return enough to keep several workers busy, and never more than a part of the pool."""
        return cls.with_slots(pool.slots, pool.slot_bytes)

    @classmethod
    def with_slots(cls, slots: int, slot_bytes: int) -> Pipelining:
        """Return the same for a pool of *slots* slots of *slot_bytes*."""
        run = max(1, min(_MOST_IN_MEMORY, _STEP_BYTES // slot_bytes, slots // 4))
        step = min(_MOST, run)
        return cls(step, max(step, min(step * _STEPS_AHEAD, slots // 4)), run)

    def keepable(self, pool: BlockPool) -> int:
        """Bytes of *pool* that a tier in memory may keep, so that one call can always proceed.

        Chunks may be pinned: without some blocks for passage, a full memory tier would keep new
        chunks from the slower tiers as well.
        """
        return (pool.slots - self.passage(pool.slots)) * pool.slot_bytes

    def passage(self, slots: int) -> int:
        """The number of slots that chunks pass through, and that none may keep."""
        return min(self.ahead + 1, max(1, slots // 2))
