"""The contracts that the store and the plugin keep, on a real Mooncake."""

import pytest

from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract


class TestMooncake(StoreContract):
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

    @pytest.fixture
    def sibling(self, master, prefix, open_store):
        return open_store(master.address, prefix=f"{prefix}sibling:")


class TestPlugin(PluginContract):
    entry_point = "mooncake"
