"""A heap store leaves its memory to another one, and takes it back if that does not come to it."""

import os

import pytest

from hexkv.adapters.local.heap import HeapStore, _Kept
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.hand_over import HandOverContract
from hexkv.ports import PAGE, Failed, Hit, Item, Stored

CAPACITY = 64 * PAGE


@pytest.mark.thorough
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


def test_the_next_store_has_every_frame_in_order_and_changes_none_before_it_is_its_own():
    before = passing()
    assert all(isinstance(outcome, Stored) for outcome in write(before, KEYS))
    before.delete(KEYS[5:], deadline())
    file = before.hand_over([KEYS[2], KEYS[0], KEYS[1], KEYS[3], KEYS[5]])
    assert [one.key for one in file.frames] == [KEYS[2], KEYS[0], KEYS[1], KEYS[3]]
    after = HeapStore(ManualClock(), CAPACITY, inherited=file)
    ordered = sorted(after.scan(), key=lambda entry: entry.stored)
    assert [entry.key for entry in ordered] == [one.key for one in file.frames]
    assert len({entry.stored // 1 for entry in ordered}) == 4, "one second is one prompt"
    assert after.used_bytes == sum(len(frame(key)) for key in KEYS[:4])
    for store in (before, after):
        assert isinstance(write(store, KEYS[5:])[0], Failed), "whose it is is not yet known"
    # Neither deletes under the other, whichever goes on.
    after.delete([KEYS[2]], deadline())
    before.delete([KEYS[0]], deadline())
    assert held(before) == {key: frame(key) for key in KEYS[1:5]}
    assert held(after) == {key: frame(key) for key in (KEYS[0], KEYS[1], KEYS[3])}
    before.close()
    after.thaw()
    assert file_bytes(after) == 3 * 3 * PAGE
    assert isinstance(write(after, KEYS[5:])[0], Stored)
    assert held(after) == {key: frame(key) for key in (KEYS[0], KEYS[1], KEYS[3], KEYS[5])}
    after.close()


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


@pytest.mark.thorough
def test_private_memory_cannot_be_handed_over_and_the_store_goes_on():
    store = HeapStore(ManualClock(), CAPACITY)
    write(store, KEYS[:1])
    assert store.hand_over(KEYS) is None
    assert isinstance(write(store, KEYS[1:2])[0], Stored)
    store.close()
