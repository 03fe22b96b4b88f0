"""The contracts that the store and the plugin keep, on a real Mooncake."""

import ctypes

import pytest

from hexkv.adapters.mooncake._native import library
from hexkv.contracts.kit.whole import waive
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract
from hexkv.contracts.store._base import StoreCase
from hexkv.contracts.store._lifecycle import Lifecycle
from hexkv.contracts.store.faulty._lasting import Reopening
from hexkv.contracts.store.parallel._threads import Threads


@pytest.mark.thorough
class TestMooncake(StoreContract):
    @pytest.fixture
    def store(self, borrow_store):
        return borrow_store()

    @pytest.fixture
    def raw(self, objects):
        return objects

    @pytest.fixture
    def foreign(self, client):
        client.put("somebody else's", b"bytes")

        def look():
            return {"somebody else's": client.get("somebody else's")}

        yield look
        client.remove("somebody else's", True)

    @pytest.fixture
    def sibling(self, prefix, borrow_store):
        return borrow_store(f"{prefix}sibling:")

    @pytest.fixture
    def limit(self, client, prefix):
        bare = BareCalls(client, f"{prefix}limit")
        yield bare
        bare.clear()


class BareCalls:
    """What the library can do between a node and memory, with nothing around it."""

    def __init__(self, client, name):
        self._client = client
        self._names = [name]
        self._config = library().ReplicateConfig()

    def write(self, frame):
        self.clear()
        addresses, sizes = self._place(frame)
        assert self._client.batch_put_from(self._names, addresses, sizes, self._config) == [0]

    def read(self, into):
        addresses, sizes = self._place(into)
        assert self._client.batch_get_into(self._names, addresses, sizes) == sizes

    def clear(self):
        self._client.batch_remove(self._names, True)

    @staticmethod
    def _place(memory):
        # Over TCP memory need not be registered.
        return [ctypes.addressof(ctypes.c_char.from_buffer(memory))], [len(memory)]


@pytest.mark.thorough
class TestMooncakeOfItsOwn(Lifecycle, Threads, Reopening, StoreCase):
    """With a client that begins and ends with the store, as in an engine."""

    test_closes_at_once = waive("the library's close sleeps 0.8 to 1.2 s, and keeps the GIL")

    @pytest.fixture
    def store(self, master, open_store):
        return open_store(master.address)

    @pytest.fixture
    def raw(self, objects):
        return objects

    @pytest.fixture
    def reopen(self, master, store, open_store):
        opened = [store]

        def again():
            opened[-1].close()
            opened.append(open_store(master.address))
            return opened[-1]

        return again


class TestPlugin(PluginContract):
    entry_point = "mooncake"
