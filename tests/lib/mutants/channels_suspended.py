"""Channels that do not leave their address, or do not come back to it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from hexkv.adapters.net.server.server import StreamServer
from hexkv.contracts.channel.double import Exchange, LocalChannel
from hexkv.ports import ConfigError
from mutants.channels import LocalContract, TcpContract


class SuspendedContract(LocalContract):
    """The double, and another one at its address."""

    @pytest.fixture
    def exchange(self):
        return Exchange()

    @pytest.fixture
    def make(self, exchange):
        return lambda: self.Make(exchange)

    @pytest.fixture
    def successor(self, exchange):
        return lambda peer: LocalChannel(exchange, address=peer.address)


class TestServesOn(SuspendedContract):
    """Who is suspended answers those who knew it before."""

    breaks = "channel.24"

    class Make(LocalChannel):
        def suspend(self):
            """Nothing."""


class TestLeavesReadersAlone(TcpContract):
    """Nobody new is let in, and who reads reads on."""

    breaks = "channel.25"

    def change(self, monkeypatch):
        monkeypatch.setattr(StreamServer, "_part", lambda server: None)


class TestStaysAway(SuspendedContract):
    """Who was suspended once is away for good."""

    breaks = "channel.26"

    class Make(LocalChannel):
        def resume(self):
            """Nothing."""


class TestComesBackElsewhere(SuspendedContract):
    """Any address is as good as the one that peers know."""

    breaks = "channel.26"

    class Make(LocalChannel):
        def suspend(self):
            super().suspend()
            self._address = ""


class TestReadsNothingMeanwhile(SuspendedContract):
    """Suspended is as good as closed."""

    breaks = "channel.27"

    class Make(LocalChannel):
        def suspend(self):
            super().suspend()
            self._closed = True


class TestKeepsItsAddress(SuspendedContract):
    """It answers nobody, and is in the way of who comes."""

    breaks = "channel.28"

    class Make(LocalChannel):
        def suspend(self):
            if self._me is not None:
                super().suspend()
                self._exchange.enter(None, 1, self._address)


class TestSaysNothingOfOthers(SuspendedContract):
    """Whether it serves again is for peers to find out."""

    breaks = "channel.28"

    class Make(LocalChannel):
        def resume(self):
            with suppress(ConfigError):
                super().resume()
