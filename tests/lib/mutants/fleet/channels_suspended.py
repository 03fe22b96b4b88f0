"""Channels that do not leave their address, or do not come back to it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from hexkv.adapters.net.server.server import StreamServer
from hexkv.contracts.channel.double import Exchange, LocalChannel
from hexkv.ports import ConfigError
from mutants.fleet.channels import LocalContract, TcpContract
from mutants.rows import Wrong, broken


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


def serves_on(self):
    """Nothing."""


def leaves_readers_alone(self, monkeypatch):
    monkeypatch.setattr(StreamServer, "_part", lambda server: None)


def stays_away(self):
    """Nothing."""


def comes_back_elsewhere(self, real):
    real()
    self._address = ""


def reads_nothing_meanwhile(self, real):
    real()
    self._closed = True


def keeps_its_address(self, real):
    if self._me is not None:
        real()
        self._exchange.enter(None, 1, self._address)


def says_nothing_of_others(self, real):
    with suppress(ConfigError):
        real()


LOCAL_CHANNEL = {
    "channel.24 serves on": Wrong(
        "Who is suspended answers those who knew it before.", suspend=serves_on
    ),
    "channel.26 stays away": Wrong("Who was suspended once is away for good.", resume=stays_away),
    "channel.26 comes back elsewhere": Wrong(
        "Any address is as good as the one that peers know.", suspend=comes_back_elsewhere
    ),
    "channel.27 reads nothing meanwhile": Wrong(
        "Suspended is as good as closed.", suspend=reads_nothing_meanwhile
    ),
    "channel.28 keeps its address": Wrong(
        "It answers nobody, and is in the way of who comes.", suspend=keeps_its_address
    ),
    "channel.28 says nothing of others": Wrong(
        "Whether it serves again is for peers to find out.", resume=says_nothing_of_others
    ),
}
globals().update(broken(__name__, SuspendedContract, LocalChannel, LOCAL_CHANNEL))


TCP_CONTRACT = {
    "channel.25 leaves readers alone": Wrong(
        "Nobody new is let in, and who reads reads on.", change=leaves_readers_alone
    ),
}
globals().update(broken(__name__, TcpContract, None, TCP_CONTRACT))
