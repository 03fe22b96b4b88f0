"""The memory store: its contract, and what is special about it."""

import pytest

from chunk_files import Copy
from hexkv.contracts.doubles import HeapBlock, ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.store import StoreContract
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore, _Copy
from hexkv.ports import (
    PAGE,
    Entry,
    Hit,
    Item,
    Miss,
    Reason,
    Stored,
    StoreError,
    SupportsScan,
    SupportsZeroCopy,
    TimedOut,
)


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


def test_keeping_a_block_copies_nothing(store):
    kept = block(b"x")
    store.put_lease([A], [kept.lease()])
    kept.memory[0] = 7
    (lent,) = store.get_lease([A], "reader")
    assert lent.frame.obj is kept.memory
    assert lent.frame[0] == 7
    lent.release()


def test_a_kept_block_is_read_as_its_frame(store):
    store.put_lease([A], [block(b"x").lease()])
    sink = ListSink()
    assert store.read([A], sink, deadline()) == [Hit(2 * PAGE)]
    assert sink.data(0) == b"x" * 2 * PAGE


def test_the_last_hold_on_a_replaced_block_is_released(store):
    first, second = block(b"1"), block(b"2")
    for kept in (first, second):
        store.put_lease([A], [kept.lease()])
    assert (first.held, second.held) == (0, 1)
    store.write([Item(A, memoryview(b"three"))], deadline())
    assert second.held == 0


def test_deleting_and_closing_release_what_was_kept(store):
    blocks = [block(b"1"), block(b"2")]
    for key, kept in zip((A, B), blocks, strict=True):
        store.put_lease([key], [kept.lease()])
    assert store.delete([A, C], deadline()) == [True, False]
    assert [kept.held for kept in blocks] == [0, 1]
    store.close()
    assert [kept.held for kept in blocks] == [0, 0]


def test_a_lent_block_outlives_its_deletion(store):
    kept = block(b"x")
    store.put_lease([A], [kept.lease()])
    (lent,) = store.get_lease([A], "reader")
    store.delete([A], deadline())
    assert kept.owners == {"reader": 1}
    assert bytes(lent.frame[:4]) == b"xxxx"
    lent.release()


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


def test_a_refused_chunk_is_not_left_held(store):
    kept = block(b"x")
    store.put_lease([A], [kept.lease()])
    assert store.read([A], ListSink(refuse=[0]), deadline()) == [Miss(Reason.REFUSED)]
    store.close()
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


def test_after_the_deadline_the_rest_is_timed_out(store, clock):
    class Slow(ListSink):
        def room(self, index, size):
            clock.advance(10)
            return super().room(index, size)

    items = [Item(key, memoryview(b"frame")) for key in (A, B)]
    store.write(items, deadline())
    assert store.read([A, B], Slow(), deadline(1, clock)) == [Hit(5), TimedOut()]
    assert store.write(items, deadline(0)) == [TimedOut()] * 2


def test_a_closed_store_says_so_and_holds_nothing(store):
    kept = block(b"x")
    store.close()
    store.close()
    with kept.lease() as lease, pytest.raises(StoreError, match="closed"):
        store.put_lease([A], [lease])
    assert kept.held == 0
    for call in (
        lambda: store.get_lease([A], "reader"),
        lambda: store.contains([A], deadline()),
        lambda: store.read([A], ListSink(), deadline()),
        lambda: store.write([Item(A, memoryview(b"x"))], deadline()),
        lambda: store.delete([A], deadline()),
        lambda: list(store.scan()),
    ):
        with pytest.raises(StoreError, match="closed"):
            call()
