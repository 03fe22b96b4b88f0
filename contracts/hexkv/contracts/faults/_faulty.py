"""A store that fails by a plan, or at a test's command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from threading import Event, Lock
from typing import TypeVar

from hexkv.contracts.faults._plans import Fault, Plan, Seeded, Trouble
from hexkv.contracts.faults._wrapping import Wrapped
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Sink,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")

_UNREAD = 0xA5
"""The byte at the unfilled end of a short read."""

_REMEMBERED = 256


def pause(seconds: float) -> None:
    """Let real time pass."""
    Event().wait(seconds)


def stand_still(released: Event) -> None:
    """Wait for *released*, without a limit."""
    released.wait()


class FaultyStore(Wrapped):
    """Passes calls to the store inside, with the faults of its plan and its switches.

    Args:
        store: the store inside.
        plan: decides for each call; may be replaced at any time.
        spend: lets seconds pass: half of a call's time before its work, half after it or, for a
            read, while it has the buffers.
        hold: returns once the event in its argument is set: used by calls that hang.
    """

    def __init__(
        self,
        store: ChunkStore,
        plan: Plan | None = None,
        *,
        spend: Callable[[float], None] = pause,
        hold: Callable[[Event], None] = stand_still,
    ) -> None:
        super().__init__(store)
        self.plan: Plan = Seeded(0) if plan is None else plan
        self.full = False
        """True if the medium is full."""

        self._spend = spend
        self._hold = hold
        self._rng = Random(0)  # noqa: S311 - no secret
        self._flowing = Event()
        self._flowing.set()
        self._crashed = False
        self._lock = Lock()
        self._deleted: dict[ChunkKey, None] = {}
        self._unreadable: set[ChunkKey] = set()
        self._other: tuple[ChunkKey, bytes] | None = None

    def hang(self) -> None:
        """Let no call return until :meth:`release`; reads hang while they have their buffers."""
        self._flowing.clear()

    def release(self) -> None:
        """Let hanging calls continue."""
        self._flowing.set()

    def crash(self) -> None:
        """Let every call fail that has not yet done its work, until :meth:`restart`."""
        self._crashed = True

    def restart(self) -> None:
        """Serve again, with what the store inside has kept."""
        self._crashed = False

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        trouble = self._begin("contains", len(keys), deadline)
        found = list(self.inner.contains(keys, deadline))
        for i, fault in trouble.chunks.items():
            if fault is Fault.STALE:
                found[i] = keys[i] in self._deleted
            elif fault is Fault.FAILED:
                found[i] = False
        self._end(trouble)
        return found

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        try:
            trouble = self._begin("read", len(keys), deadline)
        except _Late:
            return [TimedOut()] * len(keys)
        share = trouble.seconds / 2 / len(keys) if keys else 0.0
        tap = _Tap(sink, lambda: self._linger(share))
        outcomes = list(self.inner.read(keys, tap, deadline))
        for i, fault in trouble.chunks.items():
            outcomes[i] = self._spoilt(fault, outcomes[i], keys[i], tap.given.get(i))
        for i, key in enumerate(keys) if self._unreadable else ():
            if key in self._unreadable and isinstance(outcomes[i], Hit):
                outcomes[i] = Failed(StoreError("planned: unreadable"))
        self._end(trouble._replace(seconds=0.0))
        return outcomes

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        try:
            trouble = self._begin("write", len(items), deadline)
        except _Late:
            return [TimedOut()] * len(items)
        outcomes: dict[int, WriteOutcome] = {}
        kept: dict[int, Item] = {}
        for i, item in enumerate(items):
            fault = Fault.FULL if self.full else trouble.chunks.get(i)
            if fault is Fault.FULL:
                outcomes[i] = Failed(StoreFull("planned: the medium is full"))
            elif fault is Fault.FAILED:
                outcomes[i] = Failed(StoreUnreachable("planned"))
            elif fault is Fault.LOST:
                outcomes[i] = Stored(len(item.frame))
            else:
                kept[i] = self._flipped(item) if fault is Fault.FLIP else item
        if kept:
            answers = self.inner.write(list(kept.values()), deadline)
            outcomes.update(zip(kept, answers, strict=True))
            self._unreadable.difference_update(item.key for item in kept.values())
            last = items[max(kept)]
            self._other = last.key, bytes(last.frame)
        self._end(trouble)
        return [outcomes[i] for i in range(len(items))]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        trouble = self._begin("delete", len(keys), deadline)
        gone = self.inner.delete(keys, deadline)
        self._unreadable.difference_update(keys)
        with self._lock:
            self._deleted.update(dict.fromkeys(keys))
            while len(self._deleted) > _REMEMBERED:
                del self._deleted[next(iter(self._deleted))]
        self._end(trouble)
        return gone

    def _do(
        self,
        operation: str,
        keys: Sequence[ChunkKey],
        deadline: Deadline | None,
        work: Callable[[], T],
    ) -> T:
        if operation == "close":
            return work()  # a client of a dead server can be closed, too
        trouble = self._begin(operation, len(keys), deadline)
        result = work()
        self._end(trouble)
        return result

    def _begin(self, operation: str, chunks: int, deadline: Deadline | None) -> Trouble:
        """Spend half of the call's time and return its faults. Raise if the call fails at once."""
        self._gate(operation)
        trouble = self.plan.trouble(operation, chunks)
        match trouble.call:
            case Fault.ERROR:
                raise StoreUnreachable("planned")
            case Fault.CRASH:
                self.crash()
            case Fault.HANG:
                self.hang()
        if trouble.seconds:
            left = trouble.seconds if deadline is None else deadline.remaining()
            self._spend(min(trouble.seconds / 2, left))
            if trouble.seconds > left:
                self._spend(max(0.0, left - trouble.seconds / 2))
                raise _Late("planned: slower than the deadline")
        self._gate(operation)
        return trouble

    def _end(self, trouble: Trouble) -> None:
        self._linger(trouble.seconds / 2)
        if trouble.call is Fault.UNSURE:
            raise StoreUnreachable("planned: done, but the answer was lost")

    def _linger(self, seconds: float) -> None:
        if seconds:
            self._spend(seconds)
        if not self._flowing.is_set():
            self._hold(self._flowing)

    def _gate(self, operation: str) -> None:
        if operation != "read":
            self._linger(0.0)
        if self._crashed:
            raise StoreUnreachable("planned: crashed")

    def _spoilt(
        self, fault: Fault, outcome: ReadOutcome, key: ChunkKey, buffer: memoryview | None
    ) -> ReadOutcome:
        if fault is Fault.FAILED:
            return Failed(StoreUnreachable("planned"))
        if not isinstance(outcome, Hit) or not buffer:
            return outcome
        if fault is Fault.UNREADABLE:
            self._unreadable.add(key)
        if fault is Fault.STALE:
            return Miss()
        if fault is Fault.SHORT:
            half = len(buffer) // 2
            buffer[half:] = bytes([_UNREAD]) * (len(buffer) - half)
        elif fault is Fault.FLIP:
            buffer[self._rng.randrange(len(buffer))] ^= 1 << self._rng.randrange(8)
        elif fault is Fault.SWAP and self._other is not None:
            other, frame = self._other
            if other != key and len(frame) == len(buffer):
                buffer[:] = frame
        return outcome

    def _flipped(self, item: Item) -> Item:
        if not item.frame:
            return item
        frame = bytearray(item.frame)
        frame[self._rng.randrange(len(frame))] ^= 1 << self._rng.randrange(8)
        return Item(item.key, memoryview(frame))


class SlowStore(FaultyStore):
    """Takes *seconds* for every call."""

    def __init__(
        self, store: ChunkStore, seconds: float, *, spend: Callable[[float], None] = pause
    ) -> None:
        super().__init__(store, Seeded(0, seconds=(seconds, seconds)), spend=spend)


class _Late(StoreUnreachable):
    """The call would outlast its deadline."""


class _Tap:
    """Notes which buffer was given for which chunk, and takes time before it is filled."""

    def __init__(self, sink: Sink, linger: Callable[[], None]) -> None:
        self.given: dict[int, memoryview] = {}
        self._sink = sink
        self._linger = linger

    def room(self, index: int, size: int) -> memoryview | None:
        buffer = self._sink.room(index, size)
        if buffer is not None:
            self.given[index] = buffer
            self._linger()
        return buffer

    def filled(self, index: int, upto: int) -> None:
        """Do not pass it on: a planned fault may damage the bytes afterwards."""


def _is_a_store(store: FaultyStore) -> ChunkStore:
    return store  # mypy checks here that a wrapper keeps the port's promises
