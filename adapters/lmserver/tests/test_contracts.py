"""The contracts that both stores and the plugin keep, against a real server process."""

from typing import ClassVar

import pytest

from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract
from lm_servers import SMALL, RawHexkv, RawLM, served


@pytest.fixture(scope="module")
def directory_server(tmp_path_factory):
    with served(*SMALL, "--dir", str(tmp_path_factory.mktemp("dir"))) as server:
        yield server


class _OverTheWire(StoreContract):
    kind = "hexkv"
    settings: ClassVar = {}
    back_door = RawHexkv

    @pytest.fixture
    def address(self, server):
        return server.address

    @pytest.fixture
    def store(self, address, open_store):
        return open_store(address, self.kind, **self.settings)

    @pytest.fixture
    def raw(self, address):
        raw = self.back_door(address)
        yield raw
        raw.close()

    @pytest.fixture
    def reopen(self, store, address, open_store):
        return lambda: (store.close(), open_store(address, self.kind, **self.settings))[1]


class TestHexkvStore(_OverTheWire):
    pass


class TestHexkvStoreWithChecksums(_OverTheWire):
    settings: ClassVar = {"checksums": True}


class TestHexkvStoreOnADirectory(_OverTheWire):
    @pytest.fixture
    def address(self, directory_server):
        raw = RawHexkv(directory_server.address)
        if keys := raw.keys():
            raw.ask(4, len(keys), b"".join(keys))
            raw.answer()
        raw.close()
        return directory_server.address


class TestLMStore(_OverTheWire):
    kind = "lm"
    back_door = RawLM


class TestPlugin(PluginContract):
    entry_point = "lmserver"
