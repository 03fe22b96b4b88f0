"""The contracts that the store and the plugin keep, on a real Mooncake."""

import pytest

from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract
from hexkv.contracts.store._base import StoreCase
from hexkv.contracts.store._lifecycle import Lifecycle
from hexkv.contracts.store._threads import Reopening, Threads


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


class TestMooncakeOfItsOwn(Lifecycle, Threads, Reopening, StoreCase):
    """With a client that begins and ends with the store, as in an engine."""

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
