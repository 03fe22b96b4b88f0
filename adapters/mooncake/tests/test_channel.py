"""The channel by the transfer engine keeps the contract of channels."""

import pytest

from hexkv.adapters.mooncake.channel import EngineMemory, MooncakeChannel
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.peers.channel import Security
from hexkv.adapters.net.server.connection import Limits
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel.apart import Recipe
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext

SECRET = "0123456789abcdef"
LIMITS = Limits(64 << 20, patience=3.0)
HERE = Address("127.0.0.1")


def channel(secret, place=HERE):
    return MooncakeChannel(
        place,
        SystemClock(),
        EngineMemory("127.0.0.1", "tcp", ""),
        security=Security(secret),
        limits=LIMITS,
    )


@pytest.mark.thorough
class TestMooncakeChannel(ChannelContract):
    @pytest.fixture
    def make(self):
        return lambda: channel(SECRET.encode())

    @pytest.fixture
    def memory(self):
        return discover().open("memory", "mmap", {}, OpenContext(SystemClock())).allocate

    @pytest.fixture
    def recipe(self):
        settings = {"secret": SECRET, "patience": 3.0, "max_frame": 64 << 20}
        return Recipe("mooncake", settings, memory="mmap")

    @pytest.fixture
    def stranger(self):
        return channel(b"another secret of 16")

    @pytest.fixture
    def successor(self):
        return lambda peer: channel(SECRET.encode(), Address.parse(peer.address))
