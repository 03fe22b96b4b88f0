from collections import Counter
from contextlib import suppress
from itertools import pairwise
from threading import Event, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from depth import examples
from hexkv.contracts.doubles import deadline
from hexkv.core.memory.pool import BlockPool
from hexkv.ports import (
    MAGIC,
    PAGE,
    ConfigError,
    InvalidRequest,
    PoolExhausted,
    frame_bytes,
    release_all,
    share_all,
)

SLOT = 16 * PAGE
FULL = SLOT - PAGE


class Heap:
    def __init__(self, size):
        self.memory = bytearray(size)
        self.buffer = memoryview(self.memory)
        self.address = 0
        self.closed = 0

    def close(self):
        self.closed += 1


def pool_of(slots, **options):
    return BlockPool(Heap(slots * SLOT), SLOT, **options)


NOW = deadline(0)


def test_a_pool_smaller_than_one_chunk_is_refused():
    with pytest.raises(ConfigError, match="does not hold one chunk"):
        BlockPool(Heap(SLOT - 1), SLOT)


def test_a_chunk_larger_than_a_block_is_refused():
    with pytest.raises(InvalidRequest, match="larger than the pool's blocks"):
        pool_of(1).lease(FULL + 1, "t", NOW)


def test_a_block_has_a_page_for_the_header_and_the_payload_behind_it():
    with pool_of(1).lease(5000, "t", NOW) as lease:
        assert len(lease.payload) == 5000
        assert len(lease.frame) == PAGE + 2 * PAGE
        lease.payload[0] = 7
        assert lease.frame[PAGE] == 7


def test_an_exhausted_pool_says_who_holds_what():
    pool = pool_of(2)
    with (
        pool.lease(FULL, "a", NOW),
        pool.lease(FULL, "b", NOW),
        pytest.raises(PoolExhausted, match="a: 1, b: 1"),
    ):
        pool.lease(FULL, "c", NOW)


def test_memory_is_not_reused_while_any_share_is_held():
    pool = pool_of(1)
    lease = pool.lease(FULL, "reader", NOW)
    share = lease.share("late read")
    lease.release()
    with pytest.raises(PoolExhausted):
        pool.lease(FULL, "next", NOW)
    assert pool.ledger() == {"late read": 1}
    share.release()
    pool.lease(FULL, "next", NOW).release()
    assert pool.ledger() == {}
    assert pool.held_bytes == 0


def test_releasing_twice_is_allowed_and_using_afterwards_is_not():
    pool = pool_of(2)
    lease = pool.lease(FULL, "t", NOW)
    lease.release()
    other = pool.lease(FULL, "t", NOW)
    lease.release()
    assert pool.ledger() == {"t": 1}
    with pytest.raises(InvalidRequest, match="released"):
        lease.payload  # noqa: B018
    other.release()


def test_a_lease_that_was_handed_over_is_its_new_owners_alone():
    pool = pool_of(2)
    given, released = pool.lease(FULL, "call", NOW), pool.lease(FULL, "call", NOW)
    released.release()
    pool.hand_over([given, released], "store")
    assert dict(pool.ledger()) == {"store": 1}
    assert (given.owner, released.owner) == ("store", "call")
    assert pool.sweep("call") == 0
    given.payload[:] = b"k" * FULL
    other = pool.lease(FULL, "other", NOW)
    other.payload[:] = b"o" * FULL
    assert bytes(given.payload) == b"k" * FULL
    other.release()
    del given  # nobody has it any more, whoever it was handed to
    assert pool.ledger() == {}


def test_a_new_block_never_starts_with_an_old_header():
    pool = pool_of(1)
    with pool.lease(FULL, "t", NOW) as lease:
        lease.frame[: len(MAGIC)] = MAGIC
    with pool.lease(FULL, "t", NOW) as lease:
        assert bytes(lease.frame[: len(MAGIC)]) == bytes(len(MAGIC))


def test_memory_that_was_never_used_is_only_read_before_its_first_copy():
    heap = Heap(2 * SLOT)
    heap.buffer = memoryview(bytes(heap.memory))  # a write raises
    with BlockPool(heap, SLOT).lease(FULL, "t", NOW) as lease:
        assert bytes(lease.frame[: len(MAGIC)]) == bytes(len(MAGIC))


def test_freed_memory_is_poisoned_in_debug_mode():
    pool = pool_of(1, poison=True)
    with pool.lease(FULL, "t", NOW) as lease:
        view = lease.payload
        view[:] = bytes(FULL)
    assert set(bytes(view)) == {0xDE}


def test_short_chunks_share_a_slot():
    pool = pool_of(1)
    leases = [pool.lease(PAGE, "t", NOW) for _ in range(8)]
    with pytest.raises(PoolExhausted):
        pool.lease(PAGE, "t", NOW)
    for lease in leases:
        lease.release()
    pool.lease(FULL, "t", NOW).release()


def test_the_tier_that_keeps_blocks_is_asked_before_anybody_waits():
    pool = pool_of(2)
    kept = [pool.lease(FULL, "tier", NOW) for _ in range(2)]

    def evict(size):
        if not kept:
            return False
        kept.pop(0).release()
        return True

    pool.reclaim = evict
    with pool.lease(FULL, "t", NOW), pool.lease(FULL, "t", NOW):
        assert pool.ledger() == {"t": 2}
        with pytest.raises(PoolExhausted):
            pool.lease(FULL, "t", NOW)


def test_a_waiting_caller_gets_the_block_that_comes_free():
    pool = pool_of(1)
    first = pool.lease(FULL, "first", NOW)
    asking, got = Event(), []

    def reclaim(size):
        asking.set()
        return False

    pool.reclaim = reclaim
    thread = Thread(target=lambda: got.append(pool.lease(FULL, "second", deadline(60))))
    thread.start()
    assert asking.wait(60)
    first.release()
    thread.join(60)
    assert pool.ledger() == {"second": 1}
    got[0].release()


def test_closing_wakes_those_who_wait_and_keeps_memory_that_is_still_leased():
    pool = pool_of(1)
    lease = pool.lease(FULL, "late", NOW)
    asking, errors = Event(), []
    pool.reclaim = lambda size: asking.set() or False

    def wait():
        try:
            pool.lease(FULL, "second", deadline(60))
        except PoolExhausted as error:
            errors.append(error)

    thread = Thread(target=wait)
    thread.start()
    assert asking.wait(60)
    assert pool.close() == {"late": 1}
    thread.join(60)
    assert len(errors) == 1
    lease.payload[0] = 1
    lease.release()
    assert pool.close() == {}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_threads_never_share_a_block_by_accident(data):
    pool = pool_of(3)
    sizes = data.draw(st.lists(st.integers(1, FULL), min_size=4, max_size=4))
    torn = []

    def work(number, size):
        for _ in range(20):
            try:
                lease = pool.lease(size, f"t{number}", deadline(60))
            except PoolExhausted:
                continue
            with lease:
                lease.payload[:] = bytes([number]) * size
                if bytes(lease.payload) != bytes([number]) * size:
                    torn.append(number)

    threads = [Thread(target=work, args=(n, size)) for n, size in enumerate(sizes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not torn
    assert pool.ledger() == {}


class PoolMachine(RuleBasedStateMachine):
    """Blocks never overlap, used ones are lent first, and an empty pool is whole again."""

    def __init__(self):
        super().__init__()
        self.pool = pool_of(4)
        self.held = []
        self.most = 0  # slots that were leased at once

    @rule(size=st.one_of(st.integers(0, FULL), st.integers(0, 3 * PAGE)))
    def take(self, size):
        try:
            lease = self.pool.lease(size, "t", NOW)
        except PoolExhausted:
            assert self.held
            return
        mark = len(self.held) % 250 + 1
        lease.payload[:] = bytes([mark]) * size
        self.held.append((lease, mark, size))
        slots = {held.offset // SLOT for held, _, _ in self.held}
        self.most = max(self.most, len(slots))
        assert max(slots) < self.most, "a block was never used, and lent before one that was"

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1000))
    def release(self, which):
        lease, mark, size = self.held.pop(which % len(self.held))
        assert bytes(lease.payload) == bytes([mark]) * size
        lease.release()

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1000))
    def share(self, which):
        lease, mark, size = self.held[which % len(self.held)]
        self.held.append((lease.share("t"), mark, size))

    @precondition(lambda self: self.held)
    @rule(which=st.lists(st.integers(0, 1000), max_size=5), data=st.data())
    def share_and_release_a_run(self, which, data):
        some = [self.held[number % len(self.held)] for number in which]
        shares = list(share_all([lease for lease, _, _ in some], "run"))
        assert self.pool.ledger().get("run", 0) == len(some)
        for share, (_, mark, size) in zip(shares, some, strict=True):
            assert bytes(share.payload) == bytes([mark]) * size
        release_all(data.draw(st.permutations([*shares, *shares[:1]])))
        for share in shares:
            with pytest.raises(InvalidRequest):
                share.share("late")

    @precondition(lambda self: self.held)
    @rule(which=st.lists(st.integers(0, 1000), max_size=5), owner=st.sampled_from("tuv"))
    def hand_over(self, which, owner):
        leases = [self.held[number % len(self.held)][0] for number in which]
        self.pool.hand_over(leases, owner)
        assert all(lease.owner == owner for lease in leases)
        assert dict(self.pool.ledger()) == Counter(lease.owner for lease, _, _ in self.held)
        for lease, mark, size in self.held:
            assert bytes(lease.payload) == bytes([mark]) * size

    @invariant()
    def ledger_counts_every_lease(self):
        assert sum(self.pool.ledger().values()) == len(self.held)
        assert self.pool.held_bytes <= self.pool.capacity

    def teardown(self):
        for lease, _, _ in self.held:
            lease.release()
        assert self.pool.held_bytes == 0
        whole = [self.pool.lease(FULL, "all", NOW) for _ in range(4)]
        assert len(whole) == 4


PoolMachine.TestCase.settings = settings(
    max_examples=examples(15), stateful_step_count=40, deadline=None
)
TestPool = PoolMachine.TestCase


def test_frames_are_whole_pages():
    assert [frame_bytes(n) for n in (0, 1, PAGE, PAGE + 1)] == [PAGE, 2 * PAGE, 2 * PAGE, 3 * PAGE]


@settings(max_examples=examples(30))
@given(
    payloads=st.lists(st.integers(1, FULL), max_size=12),
    kept=st.lists(st.booleans(), min_size=12, max_size=12),
    shared=st.booleans(),
)
def test_a_pool_goes_on_with_the_blocks_of_another_one(payloads, kept, shared):
    """Their bytes and their places; all that is free is lent, and nothing twice."""
    heap = Heap(6 * SLOT)
    first = BlockPool(heap, SLOT, poison=True)
    leases = []
    for payload, keep in zip(payloads, kept, strict=False):
        try:
            lease = first.lease(payload, "t", NOW)
        except PoolExhausted:
            break
        lease.payload[:] = bytes([len(leases) + 1]) * payload
        leases.append((lease, keep))
    left = [lease for lease, keep in leases if keep]
    release_all([lease for lease, keep in leases if not keep])
    places = [(lease.offset, lease.size, len(lease.payload)) for lease in left]
    assert first.freeze() == {offset: (size, 1) for offset, size, _ in places}
    with pytest.raises(PoolExhausted):
        first.lease(1, "t", NOW)
    before = [bytes(lease.payload) for lease in left]
    held = first.held_bytes
    release_all(left)  # frozen: not a byte of it is poisoned
    second = BlockPool(heap, SLOT)
    mine = second.adopt([*places, *places] if shared else places, "heir")
    assert [bytes(lease.payload) for lease in mine] == before * (1 + shared)
    assert second.held_bytes == held
    taken = {(lease.offset, lease.offset + lease.size) for lease in mine}
    with suppress(PoolExhausted):
        while True:
            lease = second.lease(1, "rest", NOW)
            mine.append(lease)
            taken.add((lease.offset, lease.offset + lease.size))
    ordered = sorted(taken)
    assert all(a[1] <= b[0] for a, b in pairwise(ordered))
    assert second.held_bytes == sum(end - start for start, end in taken)
    assert second.capacity - second.held_bytes < 2 * PAGE * len(ordered) + 2 * PAGE
    release_all(mine)
    assert (second.ledger(), second.held_bytes) == ({}, 0)
    first.thaw()
    lease = first.lease(FULL, "t", NOW)
    at = lease.offset + PAGE
    lease.release()
    assert heap.memory[at] == 0xDE


def test_blocks_that_cannot_be_are_not_adopted():
    for places in (
        [(0, SLOT, FULL), (0, PAGE * 2, PAGE)],
        [(PAGE, 3 * PAGE, 1), (2 * PAGE, 3 * PAGE, 1)],
        [(PAGE, SLOT, FULL)],
        [(2 * SLOT, SLOT, FULL)],
        [(15 * PAGE, 2 * PAGE, 1)],
        [(1, 2 * PAGE, 1)],
        [(0, 2 * PAGE, 2 * PAGE)],
        [(0, 2 * PAGE, -1)],
        [(0, 0, 0)],
    ):
        pool = pool_of(2)
        with pytest.raises(InvalidRequest):
            pool.adopt(places, "heir")
        assert pool.ledger() == {}
        release_all([pool.lease(FULL, "t", NOW) for _ in range(2)])
        with pool.lease(1, "t", NOW), pytest.raises(InvalidRequest, match="leased already"):
            pool.adopt([(0, SLOT, FULL)], "heir")
