"""Promises about data that must outlive a store, and resources that must not."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, active_count
from time import perf_counter

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import (
    RawAccess,
    Reopen,
    StoreCase,
    content,
    promptly,
    read,
    same,
    write,
)
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Hit,
    Item,
    StoreError,
    SupportsClear,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    namespace_of,
)

STORES = 8
"""The number of stores that are opened and closed, to see their leftovers."""

GOING = 20.0
"""Seconds that closed resources may take to be gone."""

PROMPT = 1.0
"""Seconds that closing may take."""

TRIES = 5
"""The number of attempts: a busy machine is not slow each time."""

TURNS = 40
"""The number of calls of each kind without a result, to see their leftovers."""

LARGE = 1 << 20


def open_things() -> int:
    """The number of files, sockets and threads of this process."""
    files = Path("/proc/self/fd")
    return active_count() + (len(list(files.iterdir())) if files.exists() else 0)


def left_open(before: int, most: int) -> int:
    """Wait until fewer than *most* more are open than *before*; return how many more there are."""
    limit, pause = Deadline.after(SystemClock(), GOING), Event()
    while (left := open_things() - before) >= most and not limit.expired:
        pause.wait(0.01)  # an ending thread may take a moment
    return left


def _resident() -> int:
    """Bytes of resident memory of this process; 0 if the system does not report it."""
    gc.collect()  # objects in cycles are garbage
    with suppress(OSError, AttributeError, TypeError):  # memory that is already free does not count
        ctypes.CDLL(None).malloc_trim(0)
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


class Leaks(StoreCase):
    """Promises about leaks of calls without a result, which are the most frequent ones."""

    @promise(
        "L0.8",
        "keeps no file, thread or memory of a call that came to nothing",
        clause="ChunkStore, every call",
        why="an engine would run out of descriptors or memory by misses alone",
        hint="close and release in a finally; a refused or late chunk has the same way out",
    )
    def test_what_comes_to_nothing_leaves_nothing(self, store: ChunkStore) -> None:
        here, new = chunk_key("here"), chunk_key("new")
        frame = content(LARGE)
        write(store, {here: frame})

        def turn(number: int) -> None:
            absent = chunk_key(f"absent {number}")
            assert read(store, absent, absent) == [None, None]
            assert list(store.contains([absent], deadline())) == [False]
            assert list(store.delete([absent], deadline())) == [False]
            assert not isinstance(store.read([here], ListSink(refuse={0}), deadline())[0], Hit), (
                "a hit without room"
            )
            for late in (
                lambda: store.read([here], ListSink(), deadline(-1.0)),
                lambda: store.write([Item(new, memoryview(frame))], deadline(-1.0)),
            ):
                with suppress(StoreError):
                    late()
            if isinstance(store, SupportsRangeRead):
                into = memoryview(bytearray(LARGE))
                for key, start in ((absent, 0), (here, 1)):
                    with suppress(StoreError):
                        store.read_range(key, start, into, deadline())

        for number in range(TURNS):  # this fills connections, caches and pools
            turn(number)
        things, memory = open_things(), _resident()
        for number in range(TURNS):
            turn(TURNS + number)
        left = left_open(things, TURNS)
        assert left < TURNS, f"{left} more files and threads after {TURNS} calls of each kind"
        more = _resident() - memory
        assert more < TURNS * LARGE // 2, f"{more >> 20} MiB more after {TURNS} MiB of each kind"


class Reopening(StoreCase):
    """Promises about persistent stores."""

    @pytest.fixture
    def again(self, reopen: Reopen) -> Callable[[], ChunkStore]:
        """A function that closes the store and opens it again."""
        if reopen is None:
            not_offered("reopen")
        return reopen

    @promise(
        "L0.7",
        "keeps no connection, file or thread when it is closed",
        clause="ChunkStore.close",
        why="an engine that is built anew now and then would run out of descriptors",
        hint="close what waits in a pool, too; a thread must be able to end when it is stopped",
    )
    def test_closing_leaves_nothing_open(self, again: Callable[[], ChunkStore]) -> None:
        key = chunk_key("a")
        for _ in range(2):  # objects made once for all stores exist then
            write(again(), {key: b"frame"})
        before = open_things()
        for _ in range(STORES):
            read(again(), key)
        left = left_open(before, STORES)
        assert left < STORES, f"{left} more files and threads after {STORES} stores"

    @pytest.mark.thorough
    @promise(
        "L0.9",
        "closes in less than a second when no call runs",
        clause="ChunkStore.close",
        why="an engine with a few tiers would be killed before it has stopped",
        hint="wait for no answer that may not come; a call not done by then is not done",
    )
    def test_closes_at_once(self, store: ChunkStore, again: Callable[[], ChunkStore]) -> None:
        least = PROMPT
        for _ in range(TRIES):  # other load on the machine only adds time
            write(store, {chunk_key("a"): b"frame"})
            begun = perf_counter()
            promptly(store.close)
            least = min(least, perf_counter() - begun)
            if least < PROMPT:
                return
            store = again()
        raise AssertionError(f"each of {TRIES} times it took longer than {PROMPT} s")

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
        "brings back nothing that was deleted, overwritten, cleared or set aside",
        clause="ChunkStore.delete, ChunkStore.write",
        why="after a restart, deleted chunks would be served again",
    )
    def test_reopening_brings_nothing_back(
        self, store: ChunkStore, raw: RawAccess, again: Callable[[], ChunkStore]
    ) -> None:
        a, b, c, d = (chunk_key(name, name) for name in "abcd")
        write(store, {a: b"old a", b: b"old b", c: b"old c", d: b"old d"})
        write(store, {a: b"new a"})
        store.delete([b], deadline())
        _take_away(store, c, d)
        store = again()
        assert read(store, a) in ([b"new a"], [None])
        assert read(store, b, c, d) == [None] * 3
        assert list(store.contains([b, c, d], deadline())) == [False] * 3
        assert raw.keys() <= {a}

    @promise(
        "L3.6",
        "works after it was opened again as it did before",
        clause="ChunkStore",
        why="the cache would be dead after the second start",
    )
    def test_a_reopened_store_works(
        self, store: ChunkStore, again: Callable[[], ChunkStore]
    ) -> None:
        a, b, c, d = (chunk_key(name, name) for name in "abcd")
        write(store, {a: b"a", c: b"c", d: b"d"})
        store = again()
        if isinstance(store, SupportsRangeRead) and read(store, a) == [b"a"]:
            assert store.read_range(a, 0, memoryview(bytearray(1)), deadline()) == Hit(1)
        _take_away(store, c, d)
        assert read(store, c, d) == [None, None], "a chunk of an earlier life is not taken away"
        write(store, {a: b"new a", b: b"b"})
        store = again()
        assert read(store, a) in ([b"new a"], [None])
        write(store, {a: b"new a", b: b"b"})
        same(read(store, a, b), [b"new a", b"b"])
        assert list(store.delete([a, b], deadline())) == [True, True]
        store = again()
        assert read(store, a, b) == [None, None]


def _take_away(store: ChunkStore, aside: ChunkKey, cleared: ChunkKey) -> None:
    """Set *aside* aside and clear the namespace of *cleared*, as far as *store* can."""
    if isinstance(store, SupportsQuarantine):
        store.quarantine([aside], deadline())
    else:
        store.delete([aside], deadline())
    if isinstance(store, SupportsClear):
        store.clear_prefix(namespace_of(cleared), deadline())
    else:
        store.delete([cleared], deadline())
