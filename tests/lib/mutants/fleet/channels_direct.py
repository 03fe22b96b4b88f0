"""Channels that write into the asker's memory by themselves, and go on when it was given up."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from hexkv.adapters.mooncake import channel as mooncake
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.peers.channel import Security
from hexkv.adapters.net.peers.direct_session import DirectSession
from hexkv.adapters.net.peers.wire import REFS
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.nixl import memory as nixl
from hexkv.adapters.nixl.channel import NixlChannel
from hexkv.adapters.shm import memory as shm
from hexkv.adapters.shm.channel import ShmChannel
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel._faults import LARGE
from hexkv.contracts.channel.apart import Recipe
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Deadline
from mutants.rows import Wrong, broken

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


class AheadContract(DirectContract):
    """An owner over shared memory that does something wrong with what it leases ahead."""

    kind = "shm"
    pool = "shared"

    def channel(self):
        return ShmChannel(SystemClock(), secret=SECRET.encode(), limits=LIMITS)


def sends_another_frame_ahead(self, monkeypatch):
    right, first = DirectSession._lease, []

    def lease(session, asked, deadline):
        ahead = bool(session._lent_frames)
        rows = right(session, asked, deadline)
        if not ahead:
            first[:] = [start for _, _, start in map(REFS.unpack, rows)]
            return rows
        return [REFS.pack(*REFS.unpack(row)[:2], first[0]) for row in rows]

    monkeypatch.setattr(DirectSession, "_lease", lease)


def gives_back_what_is_read(self, monkeypatch):
    right, lending = DirectSession._lease, DirectSession._lend

    def lease(session, asked, deadline):
        session._lent.close()
        return right(session, asked, deadline)

    def lend(session, parts, deadline):
        """Say where all are at once, so that a reader is never ahead of the mistake."""
        said = []
        session._send = lambda views: said.extend(views)
        try:
            lending(session, parts, deadline)
        finally:
            del session._send
        session._send([b"".join(said)])

    monkeypatch.setattr(DirectSession, "_lease", lease)
    monkeypatch.setattr(DirectSession, "_lend", lend)


ROWS = {
    "channel.3 sends another frame ahead": Wrong(
        "Of what is leased while the reader copies it says the place of a frame that came before.",
        change=sends_another_frame_ahead,
    ),
    "channel.29 gives back what is read": Wrong(
        "As soon as the next frames are leased, those before them are not any more.",
        change=gives_back_what_is_read,
    ),
}
globals().update(broken(__name__, AheadContract, None, ROWS))
