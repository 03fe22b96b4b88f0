"""Reads of more chunks than there may be blocks for: a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from hexkv.core.memory.pool import BlockPool
from hexkv.ports import ChunkKey, Deadline, Lease, PoolExhausted, release_all

STEP = 8
"""The number of chunks in blocks at a time."""


@dataclass(slots=True)
class Obtained:
    """The result of reading some chunks."""

    leases: dict[ChunkKey, Lease] = field(default_factory=dict)
    again: list[ChunkKey] = field(default_factory=list)
    """Chunks without a block while the others held theirs."""

    short: int = 0
    """The largest payload among these in bytes."""

    absent: int = 0
    failed: int = 0
    kept: bool = False
    """True if the caller releases the leases."""

    def keep(self) -> dict[ChunkKey, Lease]:
        """Return the leases, for the caller to release."""
        self.kept = True
        return self.leases


def in_pieces(
    pool: BlockPool,
    keys: Sequence[ChunkKey],
    step: int,
    obtain: Callable[[Sequence[ChunkKey]], Obtained],
    owner: str,
    deadline: Deadline,
    *,
    held: bool = False,
) -> Generator[Obtained, None, None]:
    """Yield what *obtain* brings of *keys*, up to *step* at a time.

    Leases are released when the next are requested, unless the caller keeps them. It waits for a
    block only while none is kept, and the caller has none (*held*): see
    :meth:`~hexkv.core.memory.pool.BlockPool.lease_run`.
    """
    todo = deque(dict.fromkeys(keys))
    while todo:
        got = obtain([todo.popleft() for _ in range(min(step, len(todo)))])
        try:
            yield got
        finally:
            if not got.kept:
                release_all(list(got.leases.values()))
        held = held or (got.kept and bool(got.leases))
        todo.extendleft(reversed(got.again))
        stuck = bool(got.again) and not got.leases
        if stuck and (held or not _await_block(pool, got.short, owner, deadline)):
            yield Obtained(failed=len(todo))
            return


def _await_block(pool: BlockPool, payload_bytes: int, owner: str, deadline: Deadline) -> bool:
    """Wait for a block. Return True if one came free in time."""
    try:
        pool.lease(payload_bytes, owner, deadline).release()
    except PoolExhausted:
        return False
    return not deadline.expired
