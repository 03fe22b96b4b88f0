"""Promises about deadlines that pass within a call, slow calls, and losses by late writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Event, Lock
from typing import Any

from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.store._base import StoreCase, arrived, content, promptly, read, write
from hexkv.contracts.store.faulty._enduring import (
    DOOMED,
    ENOUGH,
    LARGE,
    OLD,
    RETURN,
    Break,
    Breakable,
    comes_back,
    endures,
    found_of,
    old_or_new,
    read_some,
    soon,
    until_written,
)
from hexkv.ports import ChunkKey, ChunkStore, Deadline, Item, Stored, StoreError

MANY = 64
"""Chunks of a batch: more than a store has under way at once."""

SOON = 4
"""Chunks of the batch after which its deadline has passed."""

SIZE = 100_000
SPOILT = 0xEE
"""The fill byte of the caller's memory after the call."""

in_a_batch = promise(
    "L1.30",
    "leaves a batch when its time is over, and not only at its end",
    clause="ChunkStore, every call's deadline",
    why="a prompt of 4,000 chunks would be waited for as long as all of them take",
    hint="look at the deadline before each chunk, or each group of them",
)


class _Ageing:
    """A clock that jumps far beyond a deadline at the ``SOON``-th step."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.limit = deadline(10.0, self._clock)
        self._left = SOON

    def step(self) -> None:
        self._left -= 1
        if not self._left:
            self._clock.advance(1000.0)


class _AgeingSink(ListSink):
    """A sink where each call of ``room`` is a step."""

    def __init__(self, ageing: _Ageing) -> None:
        super().__init__()
        self._ageing = ageing

    def room(self, index: int, size: int) -> memoryview | None:
        self._ageing.step()
        return super().room(index, size)


class _AgeingItems(Sequence[Item]):
    """A batch where each item read is a step."""

    def __init__(self, items: Sequence[Item], ageing: _Ageing) -> None:
        self._items = items
        self._ageing = ageing

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: Any) -> Any:
        self._ageing.step()
        return self._items[place]


class _Interrupting(ListSink):
    """A sink whose first call of ``room`` makes a fault, amid the answer."""

    def __init__(self, fault: Callable[[], None]) -> None:
        super().__init__()
        self._fault, self._once = fault, Lock()
        self.views: list[memoryview] = []

    def room(self, index: int, size: int) -> memoryview | None:
        if self._once.acquire(blocking=False):
            self._fault()
        view = super().room(index, size)
        if view is not None:
            self.views.append(view)
        return view


class Late(StoreCase):
    """Promises about deadlines that pass during a call; nothing here waits in real time."""

    @in_a_batch
    def test_a_read_ends_amid_its_batch(self, store: ChunkStore) -> None:
        frames = {chunk_key(f"chunk {i}"): content(SIZE, seed=i) for i in range(MANY)}
        write(store, frames)
        ageing = _Ageing()
        sink, found = _AgeingSink(ageing), 0
        with suppress(StoreError):
            outcomes = promptly(lambda: store.read(list(frames), sink, ageing.limit))
            assert len(outcomes) == MANY, "one outcome per key"
            for index, (frame, outcome) in enumerate(zip(frames.values(), outcomes, strict=True)):
                data = arrived(sink, index, outcome)
                assert data in (None, frame), "a hit with bytes that were never put there"
                found += data is not None
        assert found < MANY, f"all {MANY} chunks were read, {SOON} of them in time"

    @in_a_batch
    def test_a_write_ends_amid_its_batch(self, store: ChunkStore) -> None:
        keys = [chunk_key(f"chunk {i}") for i in range(MANY)]
        old = {key: content(SIZE // 10, seed=i) for i, key in enumerate(keys)}
        new = {key: content(SIZE // 10, seed=MANY + i) for i, key in enumerate(keys)}
        write(store, old)
        ageing = _Ageing()
        stored = written_from_reused_memory(store, new, ageing.limit, ageing)
        assert len(stored) < MANY, f"all {MANY} chunks were written, {SOON} of them in time"
        old_or_new(read(store, *keys), old, new, stored)

    @promise(
        "L3.9",
        "lets no call wait for a reader whose sink takes its time, and does not wait to close",
        clause="Sink.room",
        why="one request that waits for memory would stop all others, that free memory perhaps",
        hint="hold no lock while you call the sink, or copy",
    )
    def test_nobody_waits_for_a_slow_sink(self, store: ChunkStore) -> None:
        until_written(store, OLD | DOOMED)
        inside, free = Event(), Event()
        key, frame = next(iter(OLD.items()))

        class Slow(ListSink):
            def room(self, index: int, size: int) -> memoryview | None:
                inside.set()
                free.wait()
                return super().room(index, size)

        def neighbour() -> None:
            sink = Slow()
            with suppress(StoreError):
                (outcome,) = store.read([key], sink, deadline())
                assert arrived(sink, 0, outcome) in (None, frame)

        with UnderWay({"a neighbour": neighbour}, free.set, patience=RETURN):
            assert inside.wait(RETURN), "a chunk that is there was not read"
            endures(store)
            promptly(store.close)


class LateWrites(Breakable):
    """Promises about effects of a read or write that was given up."""

    @promise(
        "L4.11",
        "ends a read whose service fails amid the answer without a miss, and fills nothing later",
        clause="ChunkStore.read",
        why="the memory holds another chunk by then: wrong KV, after its checksum was verified",
        hint="Hit only after the last byte; end the connection and its receiver before you return",
    )
    def test_a_read_that_fails_amid_an_answer_fills_nothing_later(self, broken: Break) -> None:
        store, service = broken("stall")
        ways = [(service.stall, service.resume), (service.cut, service.mend)]
        for fault, mend in ways[: 2 if "cut" in service.can else 1]:
            until_written(store, LARGE)
            sink = _Interrupting(fault)
            try:
                read_some(store, LARGE, soon(), () if self.loses else LARGE, sink)
                for view in sink.views:
                    view[:] = bytes([SPOILT]) * len(view)
            finally:
                mend()
            comes_back(store)
            changed = sum(len(view) - bytes(view).count(SPOILT) for view in sink.views)
            assert not changed, f"{changed} bytes of the caller's memory changed after the call"

    @promise(
        "L4.10",
        "loses by a write that ran out of time that chunk at most, and shows no other bytes",
        clause="TimedOut",
        why="late, the store would send memory that holds another chunk by then",
        hint="what goes on after the call needs a copy; give up by ending the connection",
    )
    def test_a_write_out_of_time_leaves_whole_frames(self, broken: Break) -> None:
        store, service = broken("stall")
        keys = [chunk_key(f"late {i}") for i in range(3)]
        old = {key: content(200_000, seed=50 + i) for i, key in enumerate(keys)}
        new = {key: content(200_000, seed=60 + i) for i, key in enumerate(keys)}
        until_written(store, old)
        service.stall()
        try:
            stored = written_from_reused_memory(store, new, soon())
        finally:
            service.resume()
        comes_back(store)
        old_or_new(found_of(store, keys), old, new, stored)
        beside = read_some(store, OLD, soon(ENOUGH))
        assert self.loses or beside == set(OLD), "another chunk is gone"


def written_from_reused_memory(
    store: ChunkStore,
    frames: Mapping[ChunkKey, bytes],
    limit: Deadline,
    ageing: _Ageing | None = None,
) -> set[ChunkKey]:
    """Return those of *frames* that the store reports as stored."""
    __tracebackhide__ = True
    memory = {key: bytearray(frame) for key, frame in frames.items()}
    items: Sequence[Item] = [Item(key, memoryview(frame)) for key, frame in memory.items()]
    if ageing is not None:
        items = _AgeingItems(items, ageing)
    stored: set[ChunkKey] = set()
    with suppress(StoreError):
        outcomes = promptly(lambda: store.write(items, limit))
        assert len(outcomes) == len(frames), "one outcome per item"
        stored = {k for k, o in zip(frames, outcomes, strict=True) if isinstance(o, Stored)}
    for buffer in memory.values():
        buffer[:] = bytes([SPOILT]) * len(buffer)
    return stored
