"""Channels that write into the asker's memory by themselves, and go on when it was given up."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from hexkv.adapters.mooncake import channel as mooncake
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.connection import Limits
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.peers.over_tcp import Security
from hexkv.adapters.nixl import memory as nixl
from hexkv.adapters.nixl.channel import NixlChannel
from hexkv.adapters.shm import memory as shm
from hexkv.adapters.shm.channel import ShmChannel
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel._faults import LARGE
from hexkv.contracts.channel.apart import Recipe
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Deadline

SECRET = "a secret of 16 bytes"
SECURITY = Security(SECRET.encode())
LIMITS = Limits(64 << 20, patience=3.0)
HOST = "127.0.0.1"


class DirectContract(ChannelContract):
    """A channel of *kind* on memory that peers reach, with one thing changed in it."""

    kind: str
    pool = "mmap"

    @pytest.fixture
    def make(self, monkeypatch):
        self.change(monkeypatch)
        return self.channel

    @pytest.fixture
    def memory(self):
        return discover().open("memory", self.pool, {}, OpenContext(SystemClock())).allocate

    @pytest.fixture
    def recipe(self):
        settings = {"secret": SECRET, "patience": 3.0, "max_frame": 64 << 20}
        return Recipe(self.kind, settings, memory=self.pool)


class NoLease:
    """What keeps nothing leased."""

    def share(self, owner):
        return self

    def release(self):
        pass


def without_shares(monkeypatch, memory):
    """Have a library's reads rely on the leases of whoever asked for them."""
    right = memory.pull

    def pull(self, moves, filled, deadline):
        right(self, [move._replace(lease=NoLease()) for move in moves], filled, deadline)

    monkeypatch.setattr(memory, "pull", pull)


class TestNixlHasNoShares(DirectContract):
    """What NIXL writes to is leased by its caller alone, who gives up before NIXL does."""

    breaks = "channel.16"
    kind = "nixl"

    def change(self, monkeypatch):
        monkeypatch.setenv("UCX_TLS", "tcp")  # where a read needs its peer all the time
        without_shares(monkeypatch, nixl.PeerMemory)

    def channel(self):
        return NixlChannel(Address(HOST), SystemClock(), security=SECURITY, limits=LIMITS)


class TestMooncakeHasNoShares(DirectContract):
    """What the transfer engine writes to is leased by its caller alone."""

    breaks = "channel.16"
    kind = "mooncake"

    def change(self, monkeypatch):
        without_shares(monkeypatch, mooncake.PeerMemory)

    def channel(self):
        engine = mooncake.EngineMemory(HOST, "tcp", "")
        return mooncake.MooncakeChannel(
            Address(HOST), SystemClock(), engine, security=SECURITY, limits=LIMITS
        )


class TestCopiesInAThread(DirectContract):
    """A thread copies out of the peer's pool, and does so when nobody waits for it any more."""

    breaks = "channel.16"
    kind = "shm"
    pool = "shared"

    def change(self, monkeypatch):
        right, again, threads = shm.PeerPool.pull, Event(), []

        def pull(self, moves, filled, deadline):
            for thread in threads:
                again.set()
                thread.join()
            if threads or len(moves[0].into) < LARGE:
                right(self, moves, filled, deadline)
                return

            def copy():
                again.wait()
                right(self, moves, filled, Deadline.after(deadline.clock, 60))

            threads.append(Thread(target=copy, daemon=True))
            threads[0].start()
            threads[0].join(deadline.remaining())
            raise OutOfTime("too late")

        monkeypatch.setattr(shm.PeerPool, "pull", pull)

    def channel(self):
        return ShmChannel(SystemClock(), secret=SECRET.encode(), limits=LIMITS)
