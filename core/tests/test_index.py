"""What a tier's index promises: limits that hold, pins that hold, bytes that add up."""

import sys
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from depth import thorough
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.cases import each
from hexkv.core.policies import LRU, POLICIES
from hexkv.core.tiers.index.index import TierIndex
from hexkv.ports import KEY_BYTES, ChunkKey, Entry

A, B, C, D, E = (ChunkKey(letter.encode()) for letter in "ABCDE")


def filled(keys: Sequence[ChunkKey], budget: int | None = 40, size: int = 10) -> TierIndex:
    """An index whose tier holds *keys*, of *size* bytes each."""
    index = TierIndex(LRU(), budget)
    index.reserve(keys, [size] * len(keys))
    index.commit(keys)
    return index


def test_a_reserved_chunk_is_found_only_once_it_is_written():
    index = TierIndex(LRU(), 40)
    assert index.reserve([A, B], [10, 10]).keys == [A, B]
    assert index.contains([A, B]) == [False, False]
    assert (index.used, len(index)) == (20, 0)
    index.commit([A])
    assert index.contains([A, B]) == [True, False]
    assert (index.size(A), index.size(B)) == (10, None)
    assert index.keys() == [A]


def test_a_failed_write_gives_its_bytes_back():
    index = TierIndex(LRU(), 40)
    index.reserve([A, B], [10, 10])
    index.abort([B, A])
    assert index.used == 0
    assert index.reserve([B], [40]).keys == [B]


def test_what_is_there_or_under_way_is_not_written_twice():
    index = filled([A])
    index.reserve([B], [10])
    reservation = index.reserve([A, B, C, C], [10] * 4)
    assert reservation.keys == [C]
    assert reservation.busy == [B, C]
    assert reservation.refused == []


def test_a_victim_is_not_found_and_still_counts_until_it_is_deleted():
    index = filled([A, B], budget=20)
    reservation = index.reserve([C], [5])
    assert reservation.victims == [B]
    assert index.contains([A, B]) == [True, False]
    assert index.used == 20
    index.deleted(reservation.victims)
    assert index.used == 15


def test_the_room_of_a_victim_is_not_given_away_before_it_is_deleted():
    index = filled([A], budget=10)
    index.reserve([B], [10])
    index.abort([B])
    assert index.used == 10, "A is still on the store"
    assert index.reserve([C], [10]).refused == [C]
    index.deleted([A])
    assert index.reserve([C], [10]).keys == [C]


def test_a_chunk_that_is_being_deleted_is_not_written():
    index = filled([A])
    assert index.evict(1) == [A]
    assert index.reserve([A], [10]).busy == [A]
    index.deleted([A])
    assert index.reserve([A], [10]).keys == [A]


def test_deleting_twice_gives_bytes_back_once():
    index = filled([A, B])
    index.discard([A])
    index.deleted([A])
    index.deleted([A])
    assert index.used == 10


@each("size", [41, 1000])
def test_a_chunk_larger_than_the_budget_is_refused_and_evicts_nobody(size):
    index = filled([A, B])
    reservation = index.reserve([C, D], [size, 10])
    assert reservation.refused == [C]
    assert reservation.keys == [D]
    assert reservation.victims == []


def test_of_a_batch_larger_than_the_budget_the_first_win():
    index = filled([E], budget=30)
    reservation = index.reserve([A, B, C, D], [10] * 4)
    assert reservation.keys == [A, B, C]
    assert reservation.refused == [D]
    assert reservation.victims == [E]


def test_chunks_of_a_batch_do_not_evict_each_other():
    index = filled([A, B], budget=30)
    reservation = index.reserve([A, B, C, D], [10] * 4)
    assert reservation.keys == [C]
    assert reservation.refused == [D]
    assert reservation.victims == []


def test_new_chunks_do_not_evict_the_one_they_follow():
    index = filled([A], budget=10)
    assert index.reserve([B], [10], after=A).refused == [B]


def test_a_refused_chunk_evicts_nobody():
    index = filled([A, B, C], budget=30)
    index.pin("request", [A])
    reservation = index.reserve([D], [25])
    assert reservation.refused == [D]
    assert reservation.victims == []
    assert index.contains([A, B, C]) == [True] * 3


def test_victims_that_a_refused_chunk_would_have_needed_stay():
    index = filled([A, B, C], budget=30)
    index.pin("request", [A])
    reservation = index.reserve([D, E], [25, 10])
    assert (reservation.refused, reservation.keys) == ([D], [E])
    assert reservation.victims == [C]


def test_no_more_is_evicted_than_the_new_chunks_need():
    index = filled([A, B, C, D], budget=45)
    assert index.reserve([E], [15]).victims == [D]


def test_without_a_budget_nothing_is_evicted():
    index = filled([A, B, C], budget=None)
    assert index.reserve([D], [1 << 60]).keys == [D]
    assert index.evict(25) == [C, B, A]


def test_a_negative_budget_is_refused():
    with pytest.raises(ValueError, match="-1"):
        TierIndex(LRU(), -1)


def test_an_unreserved_chunk_can_be_neither_committed_nor_aborted():
    index = TierIndex(LRU(), 40)
    index.reserve([A], [10])
    for settle in (index.commit, index.abort):
        with pytest.raises(KeyError):
            settle([A, B])
    assert index.used == 10, "and A is as it was"
    index.commit([A])


def test_a_chunk_that_a_prompt_holds_twice_counts_once():
    index = TierIndex(LRU(), 40)
    assert index.reserve([A, B, A], [10] * 3).keys == [A, B]
    index.commit([A, B, A])
    assert index.used == 20
    index.touch([A, B, A])
    assert index.discard([A, A]) == [A]


def test_a_new_chunk_joins_its_parent_whatever_was_written_between():
    index = filled([A])
    index.reserve([A, B, C, D], [10] * 4)
    index.abort([C])
    index.commit([B, D])
    index.reserve([E], [10])
    index.commit([E])
    # D follows C, which is not there: the index knows no better than to take D for new.
    assert index.evict(40) == [B, A, D, E]


def test_pins_hold_until_their_last_owner_lets_go():
    index = filled([A, B])
    assert index.pin("one", [A, B, C]) == 2
    assert index.pin("two", [A]) == 1
    assert index.pin("two", [A]) == 1
    assert index.pinned == {"one": 2, "two": 1}
    assert index.unpin("one") == 2
    assert index.evict(100) == [B]
    assert index.unpin("two") == 1
    assert index.unpin("two") == 0
    assert index.evict(100) == [A]
    assert index.pinned == {}


def test_pinning_what_is_not_there_makes_no_owner():
    index = filled([A])
    assert index.pin("request", [B]) == 0
    assert index.pinned == {}


def test_a_damaged_chunk_goes_whoever_pins_it():
    index = filled([A, B])
    index.pin("one", [A])
    index.pin("two", [A, B])
    assert index.discard([A, C, A]) == [A]
    assert index.pinned == {"two": 1}
    assert index.used == 20
    index.deleted([A])
    assert index.used == 10
    assert index.unpin("one") == 0
    assert index.unpin("two") == 1


def test_discarding_without_force_spares_the_pinned():
    index = filled([A, B])
    index.pin("request", [A])
    assert index.discard([A, B], force=False) == [B]
    assert index.contains([A, B]) == [True, False]


def test_a_discarded_chunk_is_not_evicted_later():
    index = filled([A, B])
    index.discard([B])
    assert index.evict(100) == [A]


def test_evicting_frees_what_was_asked_for_and_no_chunk_more():
    index = filled([A, B, C])
    assert index.evict(0) == []
    assert index.evict(11) == [C, B]
    assert index.used == 30
    index.deleted([C, B])
    assert index.used == 10


def test_touching_keeps_a_chunk_and_passes_over_absent_ones():
    index = filled([A, B, C])
    index.touch([D, C])
    assert index.evict(1) == [B]


def test_restoring_orders_chunks_by_age_and_prompts_by_position():
    index = TierIndex(LRU(), None)
    old, new = 1_700_000_000.0, 1_700_000_100.0
    entries = [
        Entry(C, 10, new + 0.2),
        Entry(A, 10, new),
        Entry(D, 10, old),
        Entry(B, 10, new + 0.1),
    ]
    assert index.restore(entries) == []
    assert (index.used, len(index)) == (40, 4)
    assert index.evict(100) == [D, C, B, A]


def test_restoring_more_than_the_budget_gives_victims():
    index = TierIndex(LRU(), 25)
    victims = index.restore([Entry(A, 10, 3.0), Entry(B, 10, 2.0), Entry(C, 10, 1.0)])
    assert victims == [C]
    assert index.used == 30, "the store holds that much until they are deleted"
    index.deleted(victims)
    assert index.used == 20


def test_restoring_passes_over_what_is_known():
    index = filled([A])
    index.reserve([B], [10])
    index.restore([Entry(A, 99, 1.0), Entry(B, 99, 1.0), Entry(C, 10, 1.0), Entry(C, 10, 5.0)])
    assert index.used == 30


def test_a_scan_with_senseless_times_is_restored_all_the_same():
    index = TierIndex(LRU(), None)
    index.restore([Entry(A, 10, float("nan")), Entry(B, 10, float("inf")), Entry(C, 10, -1e300)])
    assert len(index) == 3


@pytest.mark.parametrize("name", ["lru", *thorough(*(name for name in POLICIES if name != "lru"))])
def test_a_chunk_costs_at_most_600_bytes(name):
    count = 100_000
    tracemalloc.start()
    try:
        index = TierIndex(POLICIES[name](), None)
        for n in range(0, count, 500):
            keys = [ChunkKey(i.to_bytes(KEY_BYTES, "big")) for i in range(n, n + 500)]
            index.reserve(keys, [4096 + i for i in range(n, n + 500)])
            index.commit(keys)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == count
    assert kept / count < 600


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Let threads take turns within a call, not only between calls."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hurried_threads")
def test_threads_never_take_the_store_over_its_budget():
    budget, workers, rounds = 200, 4, 200
    index = TierIndex(LRU(), budget)
    lock = threading.Lock()
    store: dict[ChunkKey, int] = {}

    def write(key: ChunkKey, size: int) -> None:
        with lock:
            store[key] = size
            assert sum(store.values()) <= budget

    def delete(keys: Sequence[ChunkKey]) -> None:
        with lock:
            for key in keys:
                del store[key]
        index.deleted(keys)

    def work(worker: int) -> None:
        owner = str(worker)
        for n in range(rounds):
            keys = [ChunkKey(b"%d" % ((7 * worker + n + i) % 40)) for i in range(6)]
            held = keys[:2] if index.pin(owner, keys[:2]) == 2 else []
            index.touch(keys)
            reservation = index.reserve(keys[2:], [10 + n % 5] * 4, keys[1])
            delete(reservation.victims)
            for key in reservation.keys[::2]:
                write(key, 10 + n % 5)
            index.commit(reservation.keys[::2])
            index.abort(reservation.keys[1::2])
            assert index.used <= budget
            if n % 7 == worker:
                delete(index.evict(30))
                delete(index.discard(keys, force=False))
            assert all(index.contains(held)), "a pinned chunk left"
            index.unpin(owner)

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, worker) for worker in range(workers)]:
            done.result(300)
    assert set(index.keys()) == set(store)
    assert index.used == sum(store.values())
    assert index.pinned == {}


def test_what_is_on_its_way_out_is_not_made_room_for_twice():
    index = TierIndex(LRU(), 4)
    first = [Entry(chunk_key(f"a{n}"), 1, float(n)) for n in range(6)]
    gone = index.restore(first)
    assert len(gone) == 2
    assert index.restore([]) == []
    assert len(index) == 4
