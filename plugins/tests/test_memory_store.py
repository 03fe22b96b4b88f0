"""The memory store: its contract, and what is special about it."""

import pytest

from hexkv.contracts.doubles import HeapBlock, ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.store import StoreContract
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore, _Copy
from hexkv.ports import (
    PAGE,
    Entry,
    Hit,
    Item,
    Stored,
    SupportsScan,
    SupportsZeroCopy,
)
from media.chunk_files import Copy


class Heap:
    """The back door to a memory store: its dictionary of what it holds."""

    def __init__(self, store):
        self.store = store

    def get(self, key):
        kept = self.store._chunks.get(key)
        return None if kept is None else bytes(kept.frame)

    def put(self, key, frame):
        self.store._chunks[key] = _Copy(frame)

    def keys(self):
        return set(self.store._chunks)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        store = MemoryStore(SystemClock())
        yield store
        store.close()

    @pytest.fixture
    def raw(self, store):
        return Heap(store)

    @pytest.fixture
    def sibling(self):
        store = MemoryStore(ManualClock())
        yield store
        store.close()

    @pytest.fixture
    def limit(self):
        return Copy()


A, B, C = (chunk_key(name) for name in "abc")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    store = MemoryStore(clock)
    yield store
    store.close()


def block(fill: bytes) -> HeapBlock:
    return HeapBlock(fill * (2 * PAGE))


def test_it_shares_and_scans(store):
    assert isinstance(store, SupportsZeroCopy)
    assert isinstance(store, SupportsScan)


def test_a_chunk_deleted_while_it_is_read_is_read_whole(store):
    class Deletes(ListSink):
        def room(self, index, size):
            assert store.delete([A], deadline()) == [True]
            return super().room(index, size)

    kept, sink = block(b"x"), Deletes()
    store.put_lease([A], [kept.lease()])
    assert store.read([A], sink, deadline()) == [Hit(2 * PAGE)]
    assert sink.data(0) == b"x" * 2 * PAGE
    assert kept.held == 0


def test_what_was_written_is_read_and_never_lent(store):
    assert store.write([Item(A, memoryview(b"frame"))], deadline()) == [Stored(5)]
    assert store.contains([A, B], deadline()) == [True, False]
    assert store.get_lease([A, B], "reader") == [None, None]
    sink = ListSink()
    assert store.read([A], sink, deadline()) == [Hit(5)]
    assert sink.data(0) == b"frame"


def test_scan_lists_kept_and_written_chunks_with_their_time(store, clock):
    store.write([Item(A, memoryview(b"frame"))], deadline())
    first = clock.wall()
    clock.advance(5)
    store.put_lease([B], [block(b"x").lease()])
    assert set(store.scan()) == {Entry(A, 5, first), Entry(B, 2 * PAGE, first + 5)}
