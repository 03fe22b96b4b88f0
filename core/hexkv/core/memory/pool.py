"""The block pool: all the memory that chunks pass through, allocated once and reused.

The first copy into a page costs up to four times as much as the next ones, and takes the page from
the machine. So the pool hands out the most recently freed block first, and one that was never used
only when all others are leased, in address order. A region with ``prefault`` is informed of the
furthest one, and backs pages ahead of it.

Full chunks take a slot each. Short ones (an unfull tail, a compressed chunk) share a slot that is
carved into runs of pages, so that a thousand small chunks do not take a thousand slots. A block is
freed when the last lease on it is released, never earlier, whatever deadline has passed.

The ledger is authoritative: which lease of which owner holds which block. Everything else follows
from it. So an unexpected exception (a ``KeyboardInterrupt``) in the middle of a change does no
harm: the next call derives the rest again. A lost lease does not cost a block either: it is
recorded when it is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from threading import Condition

from hexkv.core.memory.lease import BlockLease, Ledger
from hexkv.core.turns import Turn
from hexkv.ports import (
    ConfigError,
    Deadline,
    Executor,
    InvalidRequest,
    Lease,
    MemoryRegion,
    PoolExhausted,
    SupportsPrefault,
    frame_bytes,
)

__all__ = ["BlockLease", "BlockPool", "Give", "per_task"]

Give = Callable[[Sequence[Lease], str], None]
"""Transfers leases to another owner: :meth:`hexkv.core.memory.lease.Ledger.hand_over`."""


class BlockPool:
    """Hands out leases on blocks of one memory region. Safe from any thread."""

    def __init__(
        self,
        region: MemoryRegion,
        slot_bytes: int,
        *,
        poison: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Divide *region* into slots of *slot_bytes*.

        Args:
            region: closed by :meth:`close`.
            slot_bytes: bytes of the largest frame, a multiple of ``PAGE``.
            poison: debug mode: overwrite each block as it is freed, so that a use after
                release reads garbage instead of plausible KV.
            executor: provides ``wait``; by default conditions wait as threads do.

        Raises:
            ConfigError: the region does not hold one slot.
        """
        slots = len(region.buffer) // slot_bytes
        if slots < 1:
            raise ConfigError(
                f"a pool of {len(region.buffer)} bytes does not hold one chunk of {slot_bytes}"
            )
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.reclaim: Callable[[int], bool] | None = None
        """Called with the bytes to free when no block is free; returns True if it freed any."""

        self.first_end: Callable[[], float] = _never
        """The time at which something expires that ``reclaim`` can free."""

        self._region = region
        self._ahead = region if isinstance(region, SupportsPrefault) else None
        self._used = 0
        self._ledger = Ledger(region.buffer, slots, slot_bytes, poison=poison)
        # The same bound methods, without an extra call.
        self.hand_over = self._ledger.hand_over
        self.sweep = self._ledger.sweep
        self.own = self._ledger.own
        self.ledger = self._ledger.count
        self._lock = self._ledger.lock
        self._line = self._ledger.line
        self._closed = False
        self._frozen = False
        self._poison = poison
        self._wait = _wait if executor is None else executor.wait

    @property
    def region(self) -> MemoryRegion:
        """The memory that is divided."""
        return self._region

    @property
    def capacity(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.slot_bytes

    def fits(self, payload_bytes: int) -> bool:
        """True if a chunk of *payload_bytes* can be leased at all."""
        return frame_bytes(payload_bytes) <= self.slot_bytes

    def lease(
        self, payload_bytes: int, owner: str, deadline: Deadline, *, behind: int = 0
    ) -> BlockLease:
        """Lease a block with room for *payload_bytes*, with an empty header.

        Takes a free block, else one that ``reclaim`` frees, else waits for a release, in order of
        arrival. A caller that does not wait never overtakes waiting ones. *behind* further bytes
        are reclaimed at once, if the caller is about to need them.

        Raises:
            PoolExhausted: none came free before *deadline*.
            InvalidRequest: no block is that large.
        """
        size = frame_bytes(payload_bytes)
        if size > self.slot_bytes:
            raise InvalidRequest(f"a frame of {size} bytes is larger than the pool's blocks")
        with self._lock:
            if not (self._line.turns and self._line.first):
                for lease in self._grant([payload_bytes], owner):
                    return lease
        turn = Turn(self._line)
        try:
            with self._lock:
                self._line.join(turn)
            while True:
                with self._lock:
                    first = self._line.first is turn
                # Outside the lock: the memory tier releases its leases in here. Each success
                # makes the tier smaller, so this ends.
                again = first and self.reclaim is not None and self.reclaim(size + behind)
                ends = self.first_end() if first else inf
                until = Deadline(deadline.clock, min(deadline.at, ends))
                with self._lock:
                    if self._line.first is turn:
                        for lease in self._grant([payload_bytes], owner):
                            return lease
                    if again and not self._closed:
                        continue
                    if self._closed or deadline.expired:
                        raise PoolExhausted(self._why(size))
                    if not self._await(turn, first, until) and until.at >= deadline.at:
                        raise PoolExhausted(self._why(size))
        finally:
            with self._lock:
                self._line.leave(turn)

    def lease_run(
        self, payloads: Sequence[int], owner: str, deadline: Deadline
    ) -> list[BlockLease]:
        """Lease blocks for the first of *payloads*, as many as come free at once.

        Waits only for the first: a caller that holds a block while it waits for another may hold
        one that others wait for.

        Raises:
            PoolExhausted, InvalidRequest: as :meth:`lease`; there is not one.
        """
        run: list[BlockLease] = []
        size = frame_bytes(max(payloads, default=0))
        if size > self.slot_bytes:
            raise InvalidRequest(f"a frame of {size} bytes is larger than the pool's blocks")
        while len(run) < len(payloads):
            with self._lock:
                if not (self._line.turns and self._line.first):
                    run.extend(self._grant(payloads[len(run) :], owner))
            at = len(run)
            if at == len(payloads):
                break
            try:
                until = Deadline(deadline.clock, 0.0) if run else deadline
                behind = sum(map(frame_bytes, payloads[at + 1 :]))
                run.append(self.lease(payloads[at], owner, until, behind=behind))
            except PoolExhausted:
                if not run:
                    raise
                break
        return run

    @property
    def swept(self) -> int:
        """The number of leases taken back that their owners had left behind."""
        return self._ledger.swept

    @property
    def held_bytes(self) -> int:
        """Bytes of leased blocks."""
        return self._ledger.held_bytes

    def close(self) -> Mapping[str, int]:
        """Free the memory if no block is leased. Return the number of leases left, by owner.

        A region with leases on it stays allocated: a late I/O must not write into memory that
        belongs to another user by then. Calling it twice is allowed.
        """
        with self._lock:
            self._closed = True
            self._line.wake_all()
            left = self._ledger.count()
        if not left:
            self._ledger.memory = memoryview(b"")
            self._region.close()
        return left

    def freeze(self) -> Mapping[int, tuple[int, int]]:
        """Stop leasing and writing until :meth:`thaw`: another process may take over the memory.

        Leases stay valid. Return, by the offset of each leased block, its size in bytes and its
        number of leases.
        """
        with self._lock:
            self._frozen = True
            self._ledger.poison = False
            return self._ledger.places()

    def thaw(self) -> None:
        """Lease again: the memory belongs to this process."""
        with self._lock:
            self._frozen = False
            self._ledger.poison = self._poison
            self._line.wake()

    def adopt(self, places: Sequence[tuple[int, int, int]], owner: str) -> list[BlockLease]:
        """Lease blocks that another process had leased after dividing the same memory.

        For a pool without any lease yet.

        Args:
            places: offset, bytes of the block and bytes of the payload of each; one that comes
                twice is one block, leased twice.
            owner: the owner of the leases.

        Raises:
            InvalidRequest: these are no blocks of this pool, or they overlap.
        """
        with self._lock:
            return self._ledger.adopt(places, owner)

    def _grant(self, payloads: Sequence[int], owner: str) -> list[BlockLease]:
        if self._closed or self._frozen:
            return []
        leases = self._ledger.grant(payloads, owner)
        if self._ahead is not None and self._ledger.used > self._used:
            self._used = self._ledger.used
            self._ahead.prefault(self._used)
        return leases

    def _await(self, turn: Turn, first: bool, deadline: Deadline) -> bool:
        """Wait until a block came free, or until a caller that was not first becomes first."""
        freed = self._ledger.freed

        def ready() -> bool:
            self._ledger.mend()
            mine = self._line.first is turn
            return self._closed or (mine and (not first or self._ledger.freed != freed))

        return self._wait(turn.changed, ready, deadline)

    def _why(self, size: int) -> str:
        owners = ", ".join(
            f"{owner}: {len(held)}" for owner, held in sorted(self._ledger.held.items())
        )
        return f"no block of {size} bytes in {self.slots} slots; leases: {owners or 'none'}"


_TASK_BYTES = 32 << 20


def per_task(pool: BlockPool) -> int:
    """The number of chunks that one worker reads or writes at a time, by their size."""
    return max(1, _TASK_BYTES // pool.slot_bytes)


def _never() -> float:
    return inf


def _wait(condition: Condition, ready: Callable[[], bool], deadline: Deadline) -> bool:
    return condition.wait_for(ready, deadline.remaining())
