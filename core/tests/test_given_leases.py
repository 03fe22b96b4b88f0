"""What becomes of leases that are given to a tier in memory."""

import pytest

from hexkv.contracts.doubles import deadline
from hexkv.core.memory.pool import BlockPool
from hexkv.core.tiers.stores.calls import StoreCalls
from hexkv.plugins.clock import SystemClock
from hexkv.ports import KEY_BYTES, PAGE, ChunkKey, StoreFull

KEYS = [ChunkKey(bytes([number]) * KEY_BYTES) for number in range(3)]


class Heap:
    address = 0

    def __init__(self, size):
        self.buffer = memoryview(bytearray(size))

    def close(self):
        pass


class Choosy:
    """Keeps no batch, and of single chunks all but one."""

    def __init__(self, refused=None, answer=None):
        self.refused = refused
        self.answer = answer
        self.kept = {}

    def put_lease(self, keys, leases):
        if self.refused is not None and (len(keys) > 1 or keys[0] == self.refused):
            raise StoreFull("memory")
        self.kept.update(zip(keys, leases, strict=True))
        return self.answer

    def get_lease(self, keys, owner):
        return [self.kept[key].share(owner) for key in keys]

    def delete(self, keys, deadline):
        return [self.kept.pop(key, None) is not None for key in keys]


@pytest.fixture
def pool():
    return BlockPool(Heap(8 * PAGE), 2 * PAGE)


def leases_of(pool):
    return pool.lease_run([PAGE] * len(KEYS), "call", deadline(0))


def test_the_leases_themselves_are_the_stores(pool):
    store, leases = Choosy(), leases_of(pool)
    kept = StoreCalls("memory", store, SystemClock()).put_leases(
        KEYS, leases, deadline(60), pool.hand_over
    )
    assert kept == [True, True, True]
    assert [*store.kept.values()] == leases
    assert dict(pool.ledger()) == {"memory store": 3}


def test_of_no_leases_none_is_kept(pool):
    calls = StoreCalls("memory", Choosy(), SystemClock())
    assert calls.put_leases([], [], deadline(60)) == []
    assert calls.put_leases([], [], deadline(60), pool.hand_over) == []
    assert pool.ledger() == {}


def test_what_the_store_does_not_keep_stays_the_callers(pool):
    store, leases = Choosy(refused=KEYS[1]), leases_of(pool)
    kept = StoreCalls("memory", store, SystemClock()).put_leases(
        KEYS, leases, deadline(60), pool.hand_over
    )
    assert kept == [True, False, True]
    assert [lease.owner for lease in leases] == ["memory store", "call", "memory store"]
    assert dict(pool.ledger()) == {"memory store": 2, "call": 1}


def test_all_are_the_callers_again_after_an_answer_that_means_nothing(pool):
    store, leases = Choosy(answer="kept"), leases_of(pool)
    kept = StoreCalls("memory", store, SystemClock()).put_leases(
        KEYS, leases, deadline(60), pool.hand_over
    )
    assert kept == [False, False, False]
    assert not store.kept
    assert dict(pool.ledger()) == {"call": 3}
