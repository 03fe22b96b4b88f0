"""The contracts: of the plugin, and of the store over a real channel and a real directory."""

from contextlib import ExitStack

import pytest

from hexkv.adapters.net.address import Address
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import BehindProxy, StoreContract
from media.fronted import FrontedPeers, Holding


@pytest.mark.thorough
class TestPlugin(PluginContract):
    entry_point = "peer"


@pytest.mark.thorough
class TestPeers(StoreContract):
    denies_unreachable = True  # a peer that is off gives nothing

    @pytest.fixture
    def opening(self):
        with ExitStack() as opening:
            yield opening

    @pytest.fixture
    def holding(self, opening):
        holding = Holding()
        opening.callback(holding.close)
        holding.join(holding.peer.address)
        return holding

    @pytest.fixture
    def raw(self, holding):
        return holding

    @pytest.fixture
    def store(self, opening, holding):
        store = FrontedPeers(holding)
        opening.callback(store.close)
        return store

    @pytest.fixture
    def far(self, opening):
        """One that is reached through a proxy."""
        holding = Holding()
        opening.callback(holding.close)
        place = Address.parse(holding.peer.address)
        proxy = opening.enter_context(FaultProxy((place.host, place.port)))
        holding.join(proxy.address)
        return holding, proxy

    @pytest.fixture
    def service(self, far):
        return BehindProxy(far[1])

    @pytest.fixture
    def exposed(self, opening, far):
        store = FrontedPeers(far[0])
        opening.callback(store.close)
        return store
