"""Memory that is full, read-only, or not what another process said of it.

Nothing here can be slow or away: a frame is copied by the caller's own thread, whose deadline the
contract breaks (``L1.30``), from memory that ends with the process.
"""

import os
import resource
import subprocess
import sys

import pytest

from hexkv.adapters.local.heap import HeapStore
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.ports import (
    PAGE,
    Failed,
    FrameFile,
    Hit,
    Item,
    Miss,
    PlacedFrame,
    Stored,
    StoreFull,
    StoreUnreachable,
)
from media.chunk_files import Folder

A, B, C = (chunk_key(name) for name in "abc")
CAPACITY = 16 << 20


def put(store, key, size):
    return store.write([Item(key, memoryview(os.urandom(size)))], deadline())[0]


def get(store, key):
    sink = ListSink()
    (outcome,) = store.read([key], sink, deadline())
    return sink.data(0) if isinstance(outcome, Hit) else outcome


def test_a_limit_of_files_is_full_and_the_store_goes_on_within_it():
    """``ulimit -f`` holds for memory that can be handed over: it is a file."""
    store = HeapStore(ManualClock(), CAPACITY, passes_on=True)
    assert put(store, A, PAGE) == Stored(PAGE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    Folder._limit(4 * PAGE)
    try:
        outcomes = [put(store, key, 8 * PAGE) for key in (A, B)]
    finally:
        Folder._limit(before)
    assert [type(outcome.error) for outcome in outcomes] == [StoreFull] * 2
    assert len(get(store, A)) == PAGE, "what was there stays"
    assert get(store, B) == Miss()
    assert store.used_bytes == PAGE
    assert put(store, B, 8 * PAGE) == Stored(8 * PAGE)
    store.close()


WITHOUT_MEMORY = """
import resource
from hexkv.adapters.local.heap import HeapStore
from hexkv.contracts.doubles import ManualClock, chunk_key, deadline
from hexkv.ports import Item

store = HeapStore(ManualClock(), 1 << 28)
keys = [chunk_key(str(number)) for number in range(40)]
frame = memoryview(bytearray(8 << 20))
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), before[1]))
said = store.write([Item(key, frame) for key in keys[:16]], deadline())
resource.setrlimit(resource.RLIMIT_AS, before)
names = [type(getattr(one, "error", one)).__name__ for one in said]
there = store.contains(keys[:16], deadline())
print(sorted(set(names)), [name == "Stored" for name in names] == there)
print(store.used_bytes == sum(there) * len(frame))
print(type(store.write([Item(keys[20], frame)], deadline())[0]).__name__)
store.close()
"""


@pytest.mark.thorough
def test_a_process_without_memory_is_full_and_not_at_its_end():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == ["['StoreFull', 'Stored'] True", "True", "Stored"], (
        done.stderr
    )


@pytest.mark.thorough
def test_memory_that_came_read_only_is_read_and_says_that_it_cannot_be_written(caplog):
    before = HeapStore(ManualClock(), CAPACITY, passes_on=True)
    assert put(before, A, 3 * PAGE) == put(before, B, 3 * PAGE) == Stored(3 * PAGE)
    file = before.hand_over([A, B])
    reading = os.open(f"/proc/self/fd/{file.descriptor}", os.O_RDONLY)
    store = HeapStore(ManualClock(), CAPACITY, inherited=file._replace(descriptor=reading))
    os.close(reading)
    frames = [get(before, key) for key in (A, B)]
    before.close()
    store.thaw()
    outcome = put(store, C, PAGE)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreUnreachable)
    assert [get(store, key) for key in (A, B, C)] == [*frames, Miss()]
    assert list(store.delete([A, C], deadline())) == [True, False]
    assert store.used_bytes == 3 * PAGE
    assert f"{3 * PAGE} bytes stay taken" in caplog.text
    store.close()


@pytest.mark.thorough
def test_memory_that_is_shorter_than_was_said_fails_where_it_is_missing():
    before = HeapStore(ManualClock(), CAPACITY, passes_on=True)
    for key in (A, B, C):
        put(before, key, 3 * PAGE)
    file = before.hand_over([A, B, C])
    store = HeapStore(ManualClock(), CAPACITY, inherited=file)
    whole = get(before, A)
    before.close()
    os.truncate(store._file.descriptor, 4 * PAGE)
    assert get(store, A) == whole
    assert [type(get(store, key)) for key in (B, C)] == [Failed, Failed]
    part = memoryview(bytearray(PAGE))
    assert store.read_range(B, 0, part, deadline()) == Hit(PAGE)  # that much of it is there
    assert isinstance(store.read_range(B, 2 * PAGE, part, deadline()), Failed)
    store.thaw()
    for key in (B, C):
        assert put(store, key, PAGE) == Stored(PAGE)
        assert len(get(store, key)) == PAGE
    store.close()


@pytest.mark.thorough
def test_a_chunk_that_was_said_twice_counts_once_and_stays():
    before = HeapStore(ManualClock(), CAPACITY, passes_on=True)
    for key in (A, B):
        put(before, key, PAGE)
    file = before.hand_over([A, B])
    again = [*file.frames, PlacedFrame(A, file.frames[0].offset, PAGE)]
    frames = [get(before, key) for key in (A, B)]
    store = HeapStore(ManualClock(), CAPACITY, inherited=FrameFile(*file[:2], again))
    assert store.used_bytes == 2 * PAGE
    assert len(list(store.scan())) == 2
    before.close()
    store.thaw()
    assert [get(store, key) for key in (A, B)] == frames
    store.close()
