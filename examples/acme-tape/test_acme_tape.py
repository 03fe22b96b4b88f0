import pytest
from acme_tape.store import Recording, TapeStore

from hexkv.contracts.doubles import ManualClock, chunk_key, deadline
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract
from hexkv.ports import Failed, Item, Stored, StoreFull

LENGTH = 1 << 30


class TestTapePlugin(PluginContract):
    entry_point = "acme-tape"


class Reel:
    """The back door: the tape itself, reached without any method of the store."""

    def __init__(self, tape):
        self.tape = tape

    def get(self, key):
        return self.tape[key].frame if key in self.tape else None

    def put(self, key, frame):
        self.tape[key] = Recording(frame, 0.0)

    def keys(self):
        return set(self.tape)


class TestTapeStore(StoreContract):
    @pytest.fixture
    def tape(self):
        return {}

    @pytest.fixture
    def store(self, tape):
        store = TapeStore(tape, LENGTH, ManualClock())
        yield store
        store.close()

    @pytest.fixture
    def raw(self, tape):
        return Reel(tape)

    @pytest.fixture
    def reopen(self, store, tape):
        def again():
            store.close()
            return TapeStore(tape, LENGTH, ManualClock())

        return again


def test_a_tape_at_its_end_takes_nothing_more():
    store = TapeStore({}, 100, ManualClock())
    first, second = (Item(chunk_key(name), memoryview(bytes(60))) for name in "ab")
    taken, refused = store.write([first, second], deadline())
    assert taken == Stored(60)
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, StoreFull)
    assert list(store.delete([first.key], deadline())) == [True]
    assert list(store.write([second], deadline())) == [Stored(60)]
