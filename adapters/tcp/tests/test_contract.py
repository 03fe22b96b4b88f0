"""The channel keeps the contract of channels, with a secret and with TLS."""

from contextlib import contextmanager

import pytest

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.tcp.channel import Security, TcpChannel
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel._base import SIZE, soon
from hexkv.contracts.channel.apart import Recipe
from hexkv.contracts.channel.blocks import BlockSink
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.plugin import PluginContract
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Part

SECRET = "0123456789abcdef"
LIMITS = Limits(64 << 20, patience=3.0)


class TestTcpPlugin(PluginContract):
    entry_point = "tcp"


class InOrder(BlockSink):
    """Notes when it gives room for a frame, and when it is told that it has the frame."""

    def __init__(self, blocks):
        super().__init__(blocks)
        self.order = []

    def room(self, index, size):
        self.order.append(("room", index))
        return super().room(index, size)

    def filled(self, index, upto):
        self.order.append(("whole", index) if upto == SIZE else ("part", index))


def channel(security):
    return TcpChannel(Address("127.0.0.1"), SystemClock(), security=security, limits=LIMITS)


class TestTcpChannel(ChannelContract):
    @pytest.fixture
    def make(self):
        return lambda: channel(Security(SECRET.encode()))

    @pytest.fixture
    def recipe(self):
        return Recipe("tcp", {"secret": SECRET, "patience": 3.0, "max_frame": 64 << 20})

    @pytest.fixture
    def stranger(self):
        return channel(Security(b"another secret of 16"))

    @pytest.fixture
    def successor(self):
        def successor(peer):
            security = Security(SECRET.encode())
            place = Address.parse(peer.address)
            return TcpChannel(place, SystemClock(), security=security, limits=LIMITS)

        return successor

    def test_small_frames_can_be_looked_at_before_the_peer_has_sent_the_last_ones(self, near, far):
        keys = [far.source.put(f"c{i}") for i in range(20)]
        sink = InOrder(near.blocks)
        near.channel.read(far.peer, [Part(key) for key in keys], sink, soon())
        sink.release()
        assert sorted(sink.order) == sorted((it, i) for it in ("room", "whole") for i in range(20))
        assert sink.order.index(("whole", 0)) < sink.order.index(("room", 19))

    @pytest.fixture
    def proxied(self):
        @contextmanager
        def proxied(peer):
            place = Address.parse(peer.address)
            with FaultProxy((place.host, place.port)) as proxy:
                yield proxy, peer._replace(address=proxy.address)

        return proxied
