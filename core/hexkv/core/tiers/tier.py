"""One tier: a store with a name, a place in the order, an index and rules.

There are two kinds. A tier that lends has its chunks in memory, where any thread leases them at
once. Any other does I/O into blocks of the pool: it has a lane for reading and one for writing,
each with workers of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TypeVar

from hexkv.core.io.rules import LaneRules, Priority
from hexkv.core.io.scheduler import Lane
from hexkv.core.io.ticket import Room, Ticket
from hexkv.core.keys.bounded import BoundedKeys
from hexkv.core.memory.pool import per_task
from hexkv.core.runtime import Pause, no_pause
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.index.deleting import Deleted, Deleting
from hexkv.core.tiers.index.indexes import Index, Unindexed
from hexkv.core.tiers.rules import TierRules
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.stores.bandwidth import TierBandwidth
from hexkv.core.tiers.stores.calls import StoreCalls
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Entry,
    Failed,
    Item,
    Stored,
    StoreFull,
    WriteOutcome,
)

T = TypeVar("T")
Work = Callable[[bool], tuple[T, bool | None]]
"""See :meth:`hexkv.core.io.scheduler.Lane.submit`."""

_AT_ONCE = 1024
"""The most chunks that a store deletes in one call, so that a retry repeats only some."""

_TOGETHER = 8
"""The number of chunks deleted from memory between two pauses for other threads."""

_KEPT = Stored(0)
_NONE = Deleted((), ())


@dataclass(frozen=True, slots=True)
class TierPlan:
    """The parts of a tier. It owns the store from now on, and its index."""

    name: str
    store: ChunkStore
    index: Index = field(default_factory=Unindexed)
    """The chunks of the tier, as far as this engine decides them."""

    rules: TierRules = field(default_factory=TierRules)


class Tier:
    """A store, its index, and its rules."""

    reading: Lane
    """Only of a tier that does I/O."""

    writing: Lane

    def __init__(self, plan: TierPlan, runtime: TierRuntime) -> None:
        """Make the tier of *plan*, with lanes and workers if it does I/O.

        Raises:
            ConfigError: a property of the store that must be a boolean is not.
        """
        calls = StoreCalls(plan.name, plan.store, runtime.clock, indexed=plan.index.decides)
        self.name = plan.name
        self.store = plan.store
        self.index = plan.index
        self.rules = plan.rules
        self.calls = calls
        self.lends = calls.lends
        """True if its chunks need no block to be read into: they are leased in place."""

        self.shared = calls.shared
        """True if others add and remove chunks beside this engine."""

        self.own_memory = calls.own_memory
        """True if the tier's chunks take memory of its store, and none of the pool."""

        self.in_pool = self.lends and not self.own_memory
        """True if the tier's chunks are in blocks of the pool."""

        self.in_memory = self.lends or self.own_memory
        """True if the tier's chunks end with this process."""

        self.indexing = False
        """True while the index is being filled from the store."""

        self.link = TierBandwidth()
        """The read rates."""

        self.backlog = BoundedKeys(4096)
        """Chunks that should be here and could not be written."""

        self.lanes: Sequence[Lane] = ()
        """The lane for reading and the one for writing; empty if it lends."""

        self.step: int | None = None
        """The number of chunks that one worker reads or writes at a time; ``None``: no limit."""

        self._closing: Lane | None = None
        if not self.lends:
            lane = partial(runtime.lane, notices=calls.notices)
            self.reading = lane(f"{self.name}/read", self.rules.lane)
            self.writing = lane(f"{self.name}/write", self.rules.lane)
            self.lanes = (self.reading, self.writing)
            # With a worker from the start: at the end it may be impossible to start a thread.
            self._closing = lane(f"{self.name}/close", LaneRules(workers=1))
            self.step = per_task(runtime.pool)
        self.deleting = Deleting(self.index, runtime.executor.wait)
        self._runtime = runtime
        self._replaced: set[ChunkKey] = set()
        self._lock = Lock()

    @property
    def off(self) -> bool:
        """True while the breaker refuses reads."""
        return not self.lends and self.reading.breaker.pause > 0 and self.reading.breaker.refuses

    @property
    def refuses(self) -> bool:
        """True while the breaker refuses writes."""
        return not self.lends and self.writing.breaker.pause > 0 and self.writing.breaker.refuses

    @property
    def remote(self) -> bool:
        """True if the index is incomplete, and a lookup needs I/O of the store."""
        return not self.lends and (not self.index.decides or self.indexing or self.shared)

    def submit(
        self,
        priority: Priority,
        size: int,
        work: Work[T],
        deadline: Deadline | None = None,
        room: Room | None = None,
    ) -> Ticket[T]:
        """Submit *work* to a worker, or run it at once if no I/O is needed; see :class:`Lane`.

        Raises:
            Refused: the lane does not take it.
        """
        if self.lends:
            result, _ = work(True)
            return Ticket.of(result)
        lane = self.writing if priority >= Priority.DELETE else self.reading
        return lane.submit(priority, size, work, deadline, room)

    def takes(self, size: int) -> bool:
        """True if the queue has room for a write of *size* bytes now."""
        return all(lane.takes(size) for lane in self.lanes[1:])

    def write(
        self, items: Sequence[Item], batch: Batch, deadline: Deadline, *, made_room: bool = False
    ) -> list[WriteOutcome]:
        """Put the chunks of *batch* on the store: the frames of *items*, or the leases.

        *made_room*: others were evicted for it, so its success is no sign that the store has room.
        """
        if not self.lends:
            return self.calls.write(items, deadline, made_room=made_room)
        kept = self.calls.put_leases(batch.keys, batch.leases, deadline, batch.give)
        if all(kept):
            return [_KEPT] * len(kept)
        return [_KEPT if here else Failed(StoreFull(self.name)) for here in kept]

    def known(self, keys: Sequence[ChunkKey]) -> Sequence[bool]:
        """Return True for each chunk that the index holds, and that is not barred."""
        here, faults = self.index.contains(keys), self.calls.faults
        return faults.without(keys, here) if faults.noted else here

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Return True for each chunk that index or store holds, and that is not barred."""
        known: Sequence[bool]
        if not self.index.decides:
            known = self.calls.contains(keys, deadline)
        else:
            known = self.index.contains(keys)
            # Otherwise no store is queried: this thread may be one that must not wait.
            if (self.shared or self.indexing) and not all(known):
                strange = [k for k, here in zip(keys, known, strict=True) if not here]
                rest = iter(self.calls.contains(strange, deadline))
                known = [here or next(rest) for here in known]
        faults = self.calls.faults
        return faults.without(keys, known) if faults.noted else known

    def adopt_foreign(
        self, found: Sequence[tuple[ChunkKey, int]], wall: float, turn: int
    ) -> list[ChunkKey]:
        """Adopt chunks that others have stored into the index, with the size of their frames.

        Not if a deletion began or ended since *turn*, when the store was queried: it may concern
        one of these. Return victims to evict, if the chunks exceed the budget.
        """
        if not found or not self.shared or not self.index.decides:
            return []
        known = self.index.contains([key for key, _ in found])
        rows = zip(found, known, strict=True)
        strange = [Entry(key, size, wall) for (key, size), here in rows if not here]
        if not strange:
            return []
        with self.deleting.taking_in(Deadline(self._runtime.clock, 0.0), turn) as free:
            return self.index.restore(strange) if free else []

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline, pause: Pause = no_pause) -> bool:
        """Remove chunks that left the index, and return their bytes to the budget.

        Chunks that the store fails to delete still take space: they are deferred. Return True if
        none of *keys* is left to delete. *pause* is called between parts of the work.
        """
        few = self.lends and pause is not no_pause  # each call of another store is a round trip
        step = _TOGETHER if few else _AT_ONCE
        for start in range(0, len(keys), step):
            with self.deleting.now(keys[start : start + step]) as part:
                late = start and not self.lends and deadline.expired
                if late or (part and not self.calls.delete(part, deadline)):
                    self.put_off(keys[start:])
                    return False
                self.deleting.done(part)
            pause()
        return True

    def put_off(self, keys: Sequence[ChunkKey]) -> None:
        """Remember to delete chunks that left the index; they count until :meth:`sweep`."""
        if self.index.decides:
            self.deleting.put_off(keys)

    def sweep(self, deadline: Deadline) -> bool | None:
        """Delete some deferred chunks. Return True on success; ``None`` if there were none."""
        part = self.deleting.take(_AT_ONCE)
        return self.delete(part, deadline) if part else None

    @contextmanager
    def replacing(self, key: ChunkKey, owner: str) -> Iterator[bool]:
        """Yield True if *owner* may replace a chunk; then no other call may.

        Until the end it is not evicted or cleared: the index would lose track of its size.
        """
        with self._lock:
            free = key not in self._replaced
            self._replaced.add(key)
        if not free:
            yield False
            return
        try:
            yield self.index.pin(owner, [key]) == 1
        finally:
            self.index.unpin(owner)
            with self._lock:
                self._replaced.remove(key)

    def let_go(self, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        """Remove chunks from the index, also pinned ones. Return those to delete from the store.

        Chunks being replaced stay: the index would lose track of their replacements.
        """
        with self._lock:
            return self.index.discard([key for key in keys if key not in self._replaced])

    def quarantine(
        self, keys: Sequence[ChunkKey], deadline: Deadline, since: Deleted = _NONE
    ) -> Sequence[ChunkKey]:
        """Make damaged chunks unreadable, and keep them for inspection where the store can.

        Except those deleted *since* they were read: the store may hold another chunk by now.
        Return those that leave the tier.
        """
        free = [key for key in self.not_replaced(keys) if key not in since]
        gone = self.let_go(free)
        if self.remote:  # also chunks that the index does not know, unless they left just now
            leaving = {*self.index.leaving(free)}
            gone = [*gone, *(key for key in free if key not in leaving and key not in since)]
        with self.deleting.now(free) as mine:
            if well := self.calls.quarantine(mine, deadline):
                self.deleting.done(mine)
        if not well:
            self.delete(mine, deadline)
        return gone

    @property
    def unwritten(self) -> int:
        """Bytes that are yet to be written."""
        return sum(lane.pending_bytes for lane in self.lanes[1:])

    def flush(self, deadline: Deadline) -> bool:
        """Wait until all writes are done. Return True if this ends before *deadline*."""
        return all(lane.drain(deadline) for lane in self.lanes[1:])

    def drain(self, deadline: Deadline) -> bool:
        """Wait until all reads and writes are done. Return True if this ends before *deadline*."""
        return all(lane.drain(deadline) for lane in self.lanes)

    def close_soon(self) -> Ticket[None]:
        """Close it, by a worker if the store does I/O. Starts no thread."""
        if self._closing is None or sys.is_finalizing():  # then no worker runs
            self.close()
            return Ticket.of(None)
        ticket = self._closing.submit(Priority.DELETE, 0, self._closed)
        self._runtime.executor.close(self._closing.name)  # not the lane: it might work here
        return ticket

    def _closed(self, _: bool) -> tuple[None, bool | None]:
        self.close()
        return None, None

    def close(self) -> None:
        """Stop the workers and close the store; a failure to close is only counted."""
        for lane in self.lanes:
            lane.close()
        self.calls.close()

    def not_replaced(self, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        """Return those of *keys* that are not being replaced."""
        with self._lock:
            return [key for key in keys if key not in self._replaced]
