"""A heap store leaves its memory to another one, and takes it back if that does not come to it."""

import os

import pytest

from hexkv.adapters.local.heap import HeapStore, _Kept
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.hand_over import HandOverContract
from hexkv.ports import PAGE, Hit, Item

CAPACITY = 64 * PAGE


class TestHeapHandedOver(HandOverContract):
    @pytest.fixture
    def make(self):
        def make(inherited):
            return HeapStore(
                ManualClock(), 16 << 20, passes_on=inherited is None, inherited=inherited
            )

        return make

    @pytest.fixture
    def private(self):
        store = HeapStore(ManualClock(), 16 << 20)
        yield store
        store.close()


KEYS = [chunk_key(f"chunk {number}") for number in range(6)]


def frame(key, pages=3):
    return (bytes(key) * (pages * PAGE))[: pages * PAGE - 100]


def write(store, keys, pages=3):
    items = [Item(key, memoryview(bytearray(frame(key, pages)))) for key in keys]
    return store.write(items, deadline())


def held(store):
    """By key, what it gives for each."""
    found = {}
    for key in KEYS:
        sink = ListSink()
        (outcome,) = store.read([key], sink, deadline())
        if isinstance(outcome, Hit):
            found[key] = sink.data(0)
    return found


def file_bytes(store):
    """Memory that its file takes."""
    return os.fstat(store._file.descriptor).st_blocks * 512


def passing():
    return HeapStore(ManualClock(), CAPACITY, passes_on=True)


@pytest.mark.thorough
def test_what_is_taken_back_goes_on_and_frees_what_went_meanwhile():
    before = passing()
    write(before, KEYS[:4])
    late = before._file.reserve(PAGE)
    file = before.hand_over(KEYS)
    late.fill(memoryview(b"x" * PAGE))
    other = HeapStore(ManualClock(), CAPACITY, inherited=file)
    other.delete(KEYS, deadline())
    other.close()
    before.delete(KEYS[:1], deadline())
    assert file_bytes(before) == (4 * 3 + 1) * PAGE
    before.thaw()
    assert late.copy(0, memoryview(page := bytearray(PAGE)))
    assert bytes(page) == b"x" * PAGE, "a write that was under way goes on"
    del late
    assert file_bytes(before) == 3 * 3 * PAGE
    assert held(before) == {key: frame(key) for key in KEYS[1:4]}
    write(before, KEYS[:2], pages=5)
    assert held(before)[KEYS[1]] == frame(KEYS[1], pages=5)
    assert file_bytes(before) == (2 * 3 + 2 * 5) * PAGE
    before.close()


@pytest.mark.thorough
def test_who_reads_still_reads_what_is_deleted_or_replaced_meanwhile():
    store = passing()
    write(store, KEYS[:1])

    class Deleting(ListSink):
        def room(self, index, size):
            store.delete(KEYS[:1], deadline())
            write(store, KEYS[:1], pages=7)
            store.delete(KEYS[:1], deadline())
            return super().room(index, size)

    sink = Deleting()
    assert store.read(KEYS[:1], sink, deadline()) == [Hit(len(frame(KEYS[0])))]
    assert sink.data(0) == frame(KEYS[0])
    assert file_bytes(store) == store.used_bytes == 0
    store.close()


@pytest.mark.thorough
def test_what_a_late_writer_left_is_freed_by_the_next_one():
    """It writes behind what was listed, where nobody looks, and is gone then."""
    before = passing()
    write(before, KEYS[:2])
    late = before._file.reserve(PAGE)
    file = before.hand_over(KEYS)
    after = HeapStore(ManualClock(), CAPACITY, inherited=file)
    late.fill(memoryview(bytes(PAGE)))
    after.thaw()
    assert file_bytes(after) == 2 * 3 * PAGE
    write(after, KEYS[2:3])
    late.fill(memoryview(bytes(PAGE)))
    before._kept[KEYS[3]] = _Kept(late, 0.0)
    del late
    before.close()
    assert file_bytes(after) == 3 * 3 * PAGE
    assert held(after) == {key: frame(key) for key in KEYS[:3]}
    after.close()
