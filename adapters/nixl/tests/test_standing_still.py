"""A read by NIXL stands still: others do not wait behind it, and it is not taken for over."""

from threading import Event

import pytest

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.nixl.channel import NixlChannel
from hexkv.contracts.channel._base import SIZE, ChannelCase, brief, until
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Hit, TimedOut

nixl = pytest.importorskip("nixl_cu12._api")
pytestmark = pytest.mark.thorough


class Library:
    """NIXL, of which the first reads are not over before they are told to be."""

    def __init__(self, patch):
        self.over = Event()
        self.stuck, self.reads, self.removed = [], [], []
        transfer, look = nixl.nixl_agent.transfer, nixl.nixl_agent.check_xfer_state
        remove = nixl.nixl_agent.remove_remote_agent

        def begin(agent, handle, *rest):
            self.reads.append(handle)
            done = transfer(agent, handle, *rest)
            if len(self.stuck) < 1:
                self.stuck.append(handle)
                return "PROC"
            return done

        def state(agent, handle):
            stands = handle in self.stuck and not self.over.is_set()
            return "PROC" if stands else look(agent, handle)

        def forget(agent, name):
            self.removed.append((name, self.over.is_set()))
            return remove(agent, name)

        patch.setattr(nixl.nixl_agent, "transfer", begin)
        patch.setattr(nixl.nixl_agent, "check_xfer_state", state)
        patch.setattr(nixl.nixl_agent, "remove_remote_agent", forget)


class TestStandingStill(ChannelCase):
    @pytest.fixture
    def make(self):
        limits = Limits(64 << 20, patience=3.0)
        return lambda: NixlChannel(Address("127.0.0.1"), SystemClock(), limits=limits)

    @pytest.fixture
    def memory(self):
        return discover().open("memory", "mmap", {}, OpenContext(SystemClock())).allocate

    @pytest.fixture
    def library(self, monkeypatch):
        return Library(monkeypatch)

    def test_others_are_sent_their_frames_until_it_goes_on(self, library, near, far):
        """One miss, of the call that was given up; its block stays leased until the end."""
        keys = [far.source.put(name) for name in "abc"]
        assert isinstance(near.read(far.peer, keys[:1], brief())[0][0], TimedOut)
        for _ in range(2):
            assert near.read(far.peer, keys)[0] == [Hit(SIZE)] * 3
            assert near.held() == {"channel": 1}
        assert len(library.reads) == 1, "the library is asked again"
        library.over.set()
        near.settle()
        assert near.read(far.peer, keys)[0] == [Hit(SIZE)] * 3
        assert len(library.reads) == 2

    def test_a_peer_is_not_forgotten_while_something_is_read_from_it(self, library, near, far):
        """NIXL would say that this is over."""
        key = far.source.put("a")
        assert isinstance(near.read(far.peer, [key], brief())[0][0], TimedOut)
        own = near.channel._nixl
        (remote,) = own._remotes.values()
        own.renew(remote)
        own._agent.call(lambda agent: None, 10.0)
        assert (remote.name, False) not in library.removed
        assert near.held() == {"channel": 1}
        library.over.set()
        near.settle()
        until(lambda: (remote.name, True) in library.removed, "it is not forgotten")
