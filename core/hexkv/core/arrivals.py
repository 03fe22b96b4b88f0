"""What arrives from tiers: blocks of the pool to read into, and who holds them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hexkv.core.pool import BlockLease, BlockPool
from hexkv.ports import PAGE, Deadline, MissReason, PoolExhausted, frame_bytes


@dataclass(slots=True)
class Loaded:
    """What a waterfall brought: a lease for each chunk that arrived, or why it did not.

    A context manager that lets go of the blocks.
    """

    leases: list[BlockLease | None]
    tiers: list[str]
    why: list[str]

    @classmethod
    def nothing(cls, count: int) -> Loaded:
        """The beginning, for *count* chunks."""
        return cls([None] * count, [""] * count, [MissReason.ABSENT.value] * count)

    def run(self) -> int:
        """How many chunks arrived before the first that did not."""
        return self.leases.index(None) if None in self.leases else len(self.leases)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for lease in self.leases:
            if lease is not None:
                lease.release()


class PoolSink:
    """Gives stores blocks of the pool to read into.

    Only the first block is waited for. Whoever holds blocks and waits for more can wait
    for somebody who does the same; the chunks that found no room come with the next batch.
    """

    def __init__(
        self, pool: BlockPool, raw_bytes: Sequence[int], owner: str, deadline: Deadline
    ) -> None:
        self.leases: list[BlockLease | None] = [None] * len(raw_bytes)
        self.wrong: dict[int, int] = {}
        self._pool = pool
        self._raw_bytes = raw_bytes
        self._owner = owner
        self._deadline = deadline

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`. Sizes that no frame of ours has are refused."""
        if size < PAGE or size % PAGE or size > frame_bytes(self._raw_bytes[index]):
            self.wrong[index] = size
            return None
        former = self.leases[index]
        if former is not None:
            former.release()
            self.leases[index] = None
        waited = any(lease is not None for lease in self.leases)
        deadline = Deadline(self._deadline.clock, 0.0) if waited else self._deadline
        try:
            lease = self._pool.lease(size - PAGE, self._owner, deadline)
        except PoolExhausted:
            return None
        self.leases[index] = lease
        return lease.frame

    def keep(self, index: int) -> BlockLease | None:
        """Take over the lease of a chunk that arrived."""
        lease, self.leases[index] = self.leases[index], None
        return lease

    def release(self) -> None:
        """Let go of what nobody took over."""
        for lease in self.leases:
            if lease is not None:
                lease.release()
