"""L3: many threads at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from struct import pack
from threading import Barrier, Event

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.store._base import (
    StoreCase,
    arrived,
    content,
    promptly,
    read,
    same,
    write,
)
from hexkv.ports import ChunkKey, ChunkStore, Item, StoreError

WORKERS = 4
ROUNDS = 40
LENGTHS = (4096, 70_000)
"""Bytes of frames that are overwritten by frames of the same length, as in a cache."""

MEANWHILE = 0.5
"""Seconds that a reader waits for a writer, if its store admits one during a read."""

HANGS = 300.0
"""Seconds after which threads that have work to do count as hanging."""


def stamped(name: int, version: int, size: int) -> bytes:
    """A frame that names its chunk and version in every 16 bytes, so that mixtures are detected."""
    return (pack("<IIQ", name, version, size) * (size // 16 + 1))[:size]


def is_one_value(frame: bytes, name: int) -> bool:
    """True if *frame* is one whole value of chunk *name*."""
    version = int.from_bytes(frame[4:8], "little")
    return len(frame) >= 16 and frame == stamped(name, version, len(frame))


def together(work: Callable[[int], None]) -> None:
    """Run *work* in several threads that start together; raise an error of any of them."""
    barrier = Barrier(WORKERS)

    def run(worker: int) -> None:
        barrier.wait()
        work(worker)

    works = {f"worker {i}": partial(run, i) for i in range(WORKERS)}
    with UnderWay(works, patience=HANGS):
        pass  # until all have done it


whole = promise(
    "L3.1",
    "shows a reader the old frame or the new one, whole, while it is overwritten",
    clause="ChunkStore.write",
    why="an engine that reads while another writes would load half of each",
    hint="publish a frame in one step, also one as long as the old: build it aside, then rename it",
)


class Threads(StoreCase):
    """Promises about calls from several threads at once, which the core makes."""

    @pytest.mark.usefixtures("restless")
    @whole
    def test_no_reader_sees_a_mixture(self, store: ChunkStore) -> None:
        keys = [chunk_key(f"shared {i}") for i in range(len(LENGTHS) + 1)]
        write(store, {key: stamped(i, 0, 4096) for i, key in enumerate(keys)})

        def work(worker: int) -> None:
            random = Random(worker)  # noqa: S311 - nothing here is secret
            for turn in range(ROUNDS):
                if worker % 2:
                    frames = [
                        stamped(i, worker << 16 | turn, size)
                        for i, size in enumerate([*LENGTHS, random.randint(16, 30_000)])
                    ]
                    write(store, dict(zip(keys, frames, strict=True)))
                for name, frame in enumerate(read(store, *keys)):
                    assert frame is not None, "a chunk vanished while it was overwritten"
                    assert is_one_value(frame, name), "a mixture of two frames"

        together(work)

    @whole
    @each("deleted", [False, True], ids=["overwritten", "deleted, and others written"])
    def test_a_frame_that_is_replaced_while_it_is_read_is_whole(
        self, store: ChunkStore, deleted: bool
    ) -> None:
        key, size = chunk_key(f"replaced, {deleted}"), 400_000
        write(store, {key: stamped(0, 1, size)})
        asked, replaced = Event(), Event()

        class Pausing(ListSink):
            def room(self, index: int, size: int) -> memoryview | None:
                asked.set()
                replaced.wait(MEANWHILE)  # times out if a reader keeps writers out
                return super().room(index, size)

        def replace() -> None:
            assert asked.wait(HANGS), "a chunk that is there was not read"
            if deleted:
                store.delete([key], deadline())
                write(store, {chunk_key(f"other {i}"): stamped(i, 1, size) for i in (1, 2)})
            else:
                write(store, {key: stamped(0, 2, size)})
            replaced.set()

        sink = Pausing()
        with UnderWay({"writer": replace}, asked.set, patience=HANGS):
            (outcome,) = store.read([key], sink, deadline())
        frame = arrived(sink, 0, outcome)
        if frame is None:
            assert self.loses or deleted, f"a chunk vanished while it was overwritten: {outcome}"
        else:
            assert is_one_value(frame, 0), "a mixture of two frames"

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
        "ends every call when it is closed during it, with an outcome or a StoreError",
        clause="ChunkStore.close",
        why="stopping an engine under load would end in errors that no caller expects",
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
                begun.set()  # else the closing thread would wait

        together(work)
