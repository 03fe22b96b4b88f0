"""The channel keeps the contract of channels, over what UCX takes by itself and over TCP."""

import pytest

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.peers.channel import Security
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.nixl.channel import NixlChannel
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel._base import brief
from hexkv.contracts.channel._faults import LARGE
from hexkv.contracts.channel.apart import Recipe
from hexkv.contracts.channel.blocks import BlockSink
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.plugin import PluginContract
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Hit, Part, TimedOut

pytest.importorskip("nixl_cu12")

SECRET = "0123456789abcdef"
LIMITS = Limits(64 << 20, patience=3.0)


@pytest.mark.thorough
class TestNixlPlugin(PluginContract):
    entry_point = "nixl"


def channel(secret):
    security = Security(secret)
    return NixlChannel(Address("127.0.0.1"), SystemClock(), security=security, limits=LIMITS)


@pytest.mark.thorough
class TestNixlChannel(ChannelContract):
    @pytest.fixture
    def make(self):
        return lambda: channel(SECRET.encode())

    @pytest.fixture
    def memory(self):
        return discover().open("memory", "mmap", {}, OpenContext(SystemClock())).allocate

    @pytest.fixture
    def recipe(self):
        settings = {"secret": SECRET, "patience": 3.0, "max_frame": 64 << 20}
        return Recipe("nixl", settings, memory="mmap")

    @pytest.fixture
    def stranger(self):
        return channel(b"another secret of 16")

    @pytest.fixture
    def successor(self):
        def successor(peer):
            security = Security(SECRET.encode())
            place = Address.parse(peer.address)
            return NixlChannel(place, SystemClock(), security=security, limits=LIMITS)

        return successor


@pytest.mark.thorough
class TestNixlChannelOverTcp(TestNixlChannel):
    @pytest.fixture(autouse=True)
    def transports(self, monkeypatch):
        monkeypatch.setenv("UCX_TLS", "tcp")

    def test_a_block_is_leased_until_nixl_is_done_with_it(self, open_end, apart):
        """Past the deadline, while its peer is stopped in the middle; then it comes back."""
        near, peer = open_end(1, LARGE), apart(LARGE, "a")
        key = chunk_key("a")
        outcomes, _ = near.read(peer.peer, [Part(key, 0, 10)])  # UCX has connected by now
        assert outcomes == [Hit(10)]
        sink = BlockSink(near.blocks, during=peer.stop)
        (outcome,) = near.channel.read(peer.peer, [Part(key)], sink, brief())
        assert isinstance(outcome, TimedOut)
        sink.release()
        assert near.held() == {"channel": 1}
        assert near.blocks.lease("anew") is None
        peer.resume()
        near.settle()
