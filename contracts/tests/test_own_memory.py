"""The store in memory of its own keeps every promise of a store, read-only and rounded, too."""

import pytest

from hexkv.contracts.doubles import FREED, HeapBlock, ManualClock, chunk_key
from hexkv.contracts.doubles.own_memory import OwnMemoryStore
from hexkv.contracts.store import StoreContract
from hexkv.ports import PAGE

A, B = (chunk_key(name) for name in "ab")


class RawMemory:
    """The blocks of the store, past its methods."""

    def __init__(self, store):
        self.store = store

    def get(self, key):
        kept = self.store._chunks.get(key)
        return None if kept is None else bytes(kept.lease.frame)

    def put(self, key, frame):
        self.store._put(key, HeapBlock(frame), lends=False)

    def keys(self):
        return set(self.store._chunks)


@pytest.mark.thorough
class TestOwnMemoryStore(StoreContract):
    rounding, readonly = 1, False

    @pytest.fixture
    def store(self):
        store = OwnMemoryStore(ManualClock(), rounding=self.rounding, readonly=self.readonly)
        yield store
        store.close()
        assert store.ledger() == {}

    @pytest.fixture
    def raw(self, store):
        return RawMemory(store)


class TestReadOnly(TestOwnMemoryStore):
    rounding, readonly = 16 * PAGE, True


def test_memory_is_counted_until_the_last_borrower_lets_go_and_is_poisoned_then():
    store = OwnMemoryStore(ManualClock(), rounding=4 * PAGE)
    store.put_lease([A], [HeapBlock(bytes(2 * PAGE)).lease()])
    (lent,) = store.get_lease([A], "reader")
    memory = lent.frame.obj
    store.delete([A], None)
    assert (store.used, store.ledger()) == (4 * PAGE, {"reader": 1})
    lent.release()
    assert (store.used, store.ledger()) == (0, {})
    assert set(memory) == {FREED}
