"""The channel keeps the contract of channels."""

import pytest

from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.shm.channel import ShmChannel
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel.apart import Recipe
from hexkv.contracts.plugin import PluginContract
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext

SECRET = "0123456789abcdef"
LIMITS = Limits(64 << 20, patience=3.0)


class TestShmPlugin(PluginContract):
    entry_point = "shm"


def channel(secret):
    return ShmChannel(SystemClock(), secret=secret, limits=LIMITS)


@pytest.mark.thorough
class TestShmChannel(ChannelContract):
    @pytest.fixture
    def make(self):
        return lambda: channel(SECRET.encode())

    @pytest.fixture
    def memory(self):
        return discover().open("memory", "shared", {}, OpenContext(SystemClock())).allocate

    @pytest.fixture
    def recipe(self):
        settings = {"secret": SECRET, "patience": 3.0, "max_frame": 64 << 20}
        return Recipe("shm", settings, memory="shared")

    @pytest.fixture
    def stranger(self):
        return channel(b"another secret of 16")

    @pytest.fixture
    def successor(self):
        def successor(peer):
            secret = SECRET.encode()
            return ShmChannel(SystemClock(), listen=peer.address, secret=secret, limits=LIMITS)

        return successor
