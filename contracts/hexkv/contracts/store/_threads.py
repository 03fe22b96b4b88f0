"""L3: many threads at once, and opening again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from struct import pack
from threading import Barrier, Event, active_count

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.promise import not_offered, promise
from hexkv.contracts.store._base import (
    RawAccess,
    Reopen,
    StoreCase,
    arrived,
    content,
    promptly,
    read,
    same,
    write,
)
from hexkv.contracts.waiting import UnderWay
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ChunkKey, ChunkStore, Deadline, Item, StoreError, SupportsScan

WORKERS = 4
ROUNDS = 40
STORES = 8
"""How many stores are opened and closed, to see what they leave behind."""

GOING = 20.0
"""Seconds that what was told to end may take to be gone."""

HANGS = 300.0
"""Seconds after which threads that have work to do count as hanging."""


def stamped(name: int, version: int, size: int) -> bytes:
    """A frame that says in every 16 bytes what it is: any mixture of two can be told."""
    return (pack("<IIQ", name, version, size) * (size // 16 + 1))[:size]


def is_one_value(frame: bytes, name: int) -> bool:
    """Whether *frame* is one whole value of chunk *name*."""
    version = int.from_bytes(frame[4:8], "little")
    return len(frame) >= 16 and frame == stamped(name, version, len(frame))


def together(work: Callable[[int], None]) -> None:
    """Run *work* in several threads that start at one moment; raise what any of them raises."""
    barrier = Barrier(WORKERS)

    def run(worker: int) -> None:
        barrier.wait()
        work(worker)

    works = {f"worker {i}": partial(run, i) for i in range(WORKERS)}
    with UnderWay(works, patience=HANGS):
        pass  # until all have done it


class Threads(StoreCase):
    """The core calls from several threads at once."""

    @pytest.mark.usefixtures("restless")
    @promise(
        "L3.1",
        "shows a reader the old frame or the new one, whole, while it is overwritten",
        clause="ChunkStore.write",
        why="an engine that reads while another writes would load half of each",
        hint="publish a frame in one step: build it aside, then rename or swap it in",
    )
    def test_no_reader_sees_a_mixture(self, store: ChunkStore) -> None:
        keys = [chunk_key(f"shared {i}") for i in range(3)]
        write(store, {key: stamped(i, 0, 4096) for i, key in enumerate(keys)})

        def work(worker: int) -> None:
            random = Random(worker)  # noqa: S311 - nothing here is secret
            for turn in range(ROUNDS):
                if worker % 2:
                    frames = [
                        stamped(i, worker << 16 | turn, random.randint(16, 30_000))
                        for i in range(len(keys))
                    ]
                    write(store, dict(zip(keys, frames, strict=True)))
                for name, frame in enumerate(read(store, *keys)):
                    assert frame is not None, "a chunk vanished while it was overwritten"
                    assert is_one_value(frame, name), "a mixture of two frames"

        together(work)

    @pytest.mark.usefixtures("restless")
    @promise(
        "L3.2",
        "keeps what different threads do with different keys apart",
        clause="ChunkStore, from several threads at once",
        why="the core has several workers for each tier from the first request on",
    )
    def test_threads_do_not_disturb_each_other(self, store: ChunkStore) -> None:
        def work(worker: int) -> None:
            random = Random(worker)  # noqa: S311 - nothing here is secret
            keys = [chunk_key(f"{worker}:{i}") for i in range(4)]
            model: dict[ChunkKey, bytes] = {}
            for turn in range(ROUNDS):
                some = random.sample(keys, 2)
                if turn % 3 == 2:
                    gone = list(store.delete(some, deadline()))
                    assert gone == [model.pop(key, None) is not None for key in some]
                else:
                    frames = {key: content(random.randint(0, 9000), turn) for key in some}
                    write(store, frames)
                    model.update(frames)
                same(read(store, *keys), [model.get(key) for key in keys])

        together(work)

    @promise(
        "L3.3",
        "ends every call when it is closed meanwhile, with an outcome or a StoreError",
        clause="ChunkStore.close",
        why="stopping an engine under load would end in errors that nobody knows",
        hint="a closed file descriptor or socket must not surface as an OSError",
    )
    def test_closing_ends_what_is_under_way(self, store: ChunkStore) -> None:
        keys = [chunk_key(f"chunk {i}") for i in range(3)]
        frames = {key: stamped(i, 0, 20_000) for i, key in enumerate(keys)}
        write(store, frames)
        begun, closed = Event(), Event()

        def work(worker: int) -> None:
            if worker == 0:
                try:
                    assert begun.wait(HANGS), "no call was answered"
                    promptly(store.close)
                finally:
                    closed.set()  # else the others would go on for ever
                return
            after = 0
            try:
                while after < 3:
                    after += closed.is_set()
                    with suppress(StoreError):
                        sink = ListSink()
                        for i, outcome in enumerate(store.read(keys, sink, deadline())):
                            assert arrived(sink, i, outcome) in (None, frames[keys[i]])
                        store.write([Item(k, memoryview(f)) for k, f in frames.items()], deadline())
                    begun.set()
            finally:
                begun.set()  # else nobody would close

        together(work)


def _open_things() -> int:
    """Files, sockets and threads of this process."""
    files = Path("/proc/self/fd")
    return active_count() + (len(list(files.iterdir())) if files.exists() else 0)


class Reopening(StoreCase):
    """What outlives a store, for those that are persistent."""

    @pytest.fixture
    def again(self, reopen: Reopen) -> Callable[[], ChunkStore]:
        """Close and open the store again."""
        if reopen is None:
            not_offered("reopen")
        return reopen

    @promise(
        "L0.7",
        "keeps no connection, file or thread when it is closed",
        clause="ChunkStore.close",
        why="an engine that is built anew now and then would run out of descriptors",
        hint="close what waits in a pool, too; a thread that is told to end must be able to",
    )
    def test_closing_leaves_nothing_open(self, again: Callable[[], ChunkStore]) -> None:
        key = chunk_key("a")
        for _ in range(2):  # what is made once for all stores is there then
            write(again(), {key: b"frame"})
        before = _open_things()
        for _ in range(STORES):
            read(again(), key)
        limit, pause = Deadline.after(SystemClock(), GOING), Event()
        while (left := _open_things() - before) >= STORES and not limit.expired:
            pause.wait(0.01)  # a thread that was told to end may take a moment
        assert left < STORES, f"{left} more files and threads after {STORES} stores"

    @promise(
        "L3.4",
        "keeps or loses whole chunks when it is closed and opened again",
        clause="ChunkStore",
        why="after a restart, half a chunk would be taken for a whole one",
    )
    def test_reopening_keeps_or_loses_whole_chunks(
        self, store: ChunkStore, again: Callable[[], ChunkStore]
    ) -> None:
        frames = {chunk_key(f"chunk {i}"): content(i * 3000, seed=i) for i in range(8)}
        write(store, frames)
        store = again()
        found = read(store, *frames)
        for frame, want in zip(found, frames.values(), strict=True):
            if frame is not None:
                same([frame], [want])
        here = [frame is not None for frame in found]
        assert list(store.contains(list(frames), deadline())) == here
        if isinstance(store, SupportsScan):
            listed = {entry.key: entry.size for entry in store.scan()}
            held = zip(frames, found, strict=True)
            assert listed == {key: len(frame) for key, frame in held if frame is not None}

    @promise(
        "L3.5",
        "brings back nothing that was deleted or overwritten",
        clause="ChunkStore.delete, ChunkStore.write",
        why="after a restart, what was deleted would be served again",
    )
    def test_reopening_brings_nothing_back(
        self, store: ChunkStore, raw: RawAccess, again: Callable[[], ChunkStore]
    ) -> None:
        a, b = chunk_key("a"), chunk_key("b")
        write(store, {a: b"old a", b: b"old b"})
        write(store, {a: b"new a"})
        store.delete([b], deadline())
        store = again()
        assert read(store, a) in ([b"new a"], [None])
        assert read(store, b) == [None]
        assert raw.get(b) is None

    @promise(
        "L3.6",
        "works after it was opened again as it did before",
        clause="ChunkStore",
        why="the cache would be dead after the second start",
    )
    def test_a_reopened_store_works(
        self, store: ChunkStore, again: Callable[[], ChunkStore]
    ) -> None:
        a, b = chunk_key("a"), chunk_key("b")
        write(store, {a: b"a"})
        store = again()
        write(store, {a: b"new a", b: b"b"})
        same(read(store, a, b), [b"new a", b"b"])
        assert list(store.delete([a, b], deadline())) == [True, True]
        store = again()
        assert read(store, a, b) == [None, None]
