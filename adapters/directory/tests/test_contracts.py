"""The contracts: on a server behind a proxy, on two, on a list of nodes, and of the plugin."""

from contextlib import ExitStack, contextmanager

import pytest

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.local import LocalDirectory
from hexkv.adapters.directory.replicas import ReplicatedDirectory
from hexkv.adapters.directory.server import DirectoryServer
from hexkv.adapters.directory.static import StaticDirectory
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.server import listen
from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.directory._base import NODES
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.plugin import PluginContract
from hexkv.plugins.clock import SystemClock
from servers.directory_servers import SECRET, Served


class TestPlugin(PluginContract):
    entry_point = "directory"


def address_of(proxy):
    return Address.parse(proxy.address)


class TestServed(DirectoryContract):
    @pytest.fixture
    def proxy(self, served):
        with FaultProxy((served.address.host, served.address.port)) as proxy:
            yield proxy

    @pytest.fixture
    def seen(self, proxy, client):
        clients = {name: client(address_of(proxy)) for name in NODES}
        return clients.__getitem__

    @pytest.fixture
    def elapse(self, clock):
        return clock.advance

    @pytest.fixture
    def forget(self, served):
        return served.forget

    @pytest.fixture
    def stalled(self, proxy):
        @contextmanager
        def stalled():
            proxy.stall()
            yield
            proxy.mend()

        return stalled


@pytest.mark.thorough
class TestOfManyMembers(TestServed):
    """Rows of several words."""

    @pytest.fixture
    def served(self, clock):
        with Served(clock, members=200) as served:
            for _ in range(130):
                served.cell._clean.pop()  # columns of the first words are taken
            yield served


@pytest.mark.thorough
class TestReplicated(TestServed):
    @pytest.fixture
    def second(self, clock):
        with Served(clock) as second:
            yield second

    @pytest.fixture
    def forget(self, served, second):
        def forget():
            served.forget()
            second.forget()

        return forget

    @pytest.fixture
    def both(self, proxy, second):
        """Another proxy, for the second server."""
        with FaultProxy((second.address.host, second.address.port)) as other:
            yield proxy, other

    @pytest.fixture
    def seen(self, both, client):
        def directory():
            replicas = [client(address_of(proxy)) for proxy in both]
            return ReplicatedDirectory(replicas, SystemClock(), pause=0.0)

        return {name: directory() for name in NODES}.__getitem__

    @pytest.fixture
    def stalled(self, both):
        @contextmanager
        def stalled():
            for proxy in both:
                proxy.stall()
            yield
            for proxy in both:
                proxy.mend()

        return stalled


@pytest.mark.thorough
class TestStatic(DirectoryContract):
    """Each node answers for itself; there is nobody who could lose everything, or stall for all."""

    @pytest.fixture
    def fleet(self, clock, client):
        with ExitStack() as opened:
            listeners = {name: listen("127.0.0.1", 0) for name in NODES}
            places = {name: Address(*it.getsockname()[:2]) for name, it in listeners.items()}
            fleet = {}
            for name in NODES:
                cell = Cell(clock, members=1)
                server = DirectoryServer(listeners[name], cell, SystemClock(), secret=SECRET)
                peers = [client(places[other]) for other in NODES if other != name]
                mine, serve = LocalDirectory(cell), [server].pop
                fleet[name] = StaticDirectory(mine, peers, SystemClock(), serve=serve, pause=0.0)
                opened.callback(fleet[name].close)
            yield fleet

    @pytest.fixture
    def seen(self, fleet):
        return fleet.__getitem__

    @pytest.fixture
    def elapse(self, clock):
        return clock.advance

    @pytest.fixture
    def vanish(self, fleet):
        return lambda name: fleet[name].close()
