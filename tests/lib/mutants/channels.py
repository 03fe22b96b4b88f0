"""Channels that mix chunks up, let strangers in, or touch memory that was given up."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from threading import Event, Thread

import pytest

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime
from hexkv.adapters.net.guarded import GuardedSource
from hexkv.adapters.net.peers import channel as peers
from hexkv.adapters.net.peers.line import Landing, Line
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.tcp.channel import Security, TcpChannel
from hexkv.contracts.channel import ChannelContract, double
from hexkv.contracts.channel.apart import Recipe
from hexkv.contracts.channel.double import Exchange, LocalChannel
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Failed, Hit, Miss, Stored, StoreError

SECRET = "a secret of 16 bytes"


class LocalContract(ChannelContract):
    """The double, within one process."""

    Make = LocalChannel

    @pytest.fixture
    def make(self, monkeypatch):
        exchange = Exchange()
        self.change(monkeypatch)
        return lambda: self.Make(exchange)

    def change(self, monkeypatch):
        """Nothing."""


class TestServesAfterTheEnd(LocalContract):
    """Who is closed is found by its peers all the same."""

    breaks = "channel.1"

    class Make(LocalChannel):
        def close(self):
            self._closed = True


class TestAnswersHitsFirst(LocalContract):
    """Outcomes come in an order of their own."""

    breaks = "channel.2"

    class Make(LocalChannel):
        def read(self, peer, wanted, sink, deadline):
            outcomes = super().read(peer, wanted, sink, deadline)
            return sorted(outcomes, key=lambda outcome: not isinstance(outcome, Hit))


class TestReadsFromTheStart(LocalContract):
    """A range begins where the frame does."""

    breaks = "channel.3"

    class Make(LocalChannel):
        def _read(self, source, index, part, sink, deadline):
            return super()._read(source, index, part._replace(start=0), sink, deadline)


class TestReadsSoManyChunks(LocalContract):
    """What there is more of in a batch is absent."""

    breaks = "channel.4"

    class Make(LocalChannel):
        def read(self, peer, wanted, sink, deadline):
            some = super().read(peer, wanted[:4096], sink, deadline)
            return [*some, *[Miss()] * (len(wanted) - 4096)]


class TestStopsAtARefusal(LocalContract):
    """Behind a part that there is no room for nothing is read."""

    breaks = "channel.5"

    class Make(LocalChannel):
        def read(self, peer, wanted, sink, deadline):
            outcomes = list(super().read(peer, wanted, sink, deadline))
            first = next((i for i, it in enumerate(outcomes) if isinstance(it, Miss)), None)
            return outcomes if first is None else [*outcomes[:first], *[outcomes[first]] * 4][:4]


class TestCutsQuestions(LocalContract):
    """Of a long question the beginning is asked."""

    breaks = "channel.6"

    class Make(LocalChannel):
        def ask(self, peer, question, deadline):
            return super().ask(peer, question[:1000], deadline)


class TestBelievesTheSource(LocalContract):
    """Whatever a source lends is the chunk that it was asked for."""

    breaks = "channel.7"

    def change(self, monkeypatch):
        monkeypatch.setattr(double, "is_frame", lambda frame, key: True)


class TestAsksAnyLife(LocalContract):
    """A peer that was started anew is the same peer."""

    breaks = "channel.8"

    class Make(LocalChannel):
        def read(self, peer, wanted, sink, deadline):
            return super().read(peer._replace(generation=0), wanted, sink, deadline)


class TestReadsWhatWasAskedLast(LocalContract):
    """Calls have one list of what is wanted."""

    breaks = "channel.9"

    class Make(LocalChannel):
        def read(self, peer, wanted, sink, deadline):
            self.wanted = wanted
            Event().wait(0.01)
            return super().read(peer, self.wanted, sink, deadline)


class TestReadsTooLate(LocalContract):
    """A deadline that has passed counts for nothing."""

    breaks = "channel.10"

    class Make(LocalChannel):
        def read(self, peer, wanted, sink, deadline):
            later = Deadline.after(deadline.clock, 60)
            return super().read(peer, wanted, sink, later)


class TestSendsNothing(LocalContract):
    """Every chunk is said to be there already."""

    breaks = "channel.12"

    class Make(LocalChannel):
        def offer(self, peer, offers, deadline):
            return [Stored(0)] * len(offers)


class TestFailsAllForOne(LocalContract):
    """Where there is no room for one chunk, none is stored."""

    breaks = "channel.13"

    class Make(LocalChannel):
        def offer(self, peer, offers, deadline):
            outcomes = super().offer(peer, offers, deadline)
            failed = next((it for it in outcomes if isinstance(it, Failed)), None)
            return outcomes if failed is None else [failed] * len(outcomes)


class TestPlantsAnything(LocalContract):
    """What is offered is what it is said to be."""

    breaks = "channel.14"

    def change(self, monkeypatch):
        monkeypatch.setattr(double, "is_frame", lambda frame, key: True)


class TestOffersAFew(LocalContract):
    """Of a batch the first eight are offered."""

    breaks = "channel.15"

    class Make(LocalChannel):
        def offer(self, peer, offers, deadline):
            rest = [Failed(StoreError("too many"))] * len(offers[8:])
            return [*super().offer(peer, offers[:8], deadline), *rest]


class TcpContract(ChannelContract):
    """The channel over TCP, with one thing changed in it."""

    secret = SECRET.encode()

    def change(self, monkeypatch):
        """Nothing."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """What they hang in is waited for a little only."""
        monkeypatch.setattr("hexkv.contracts.channel._base.PATIENCE", 5.0)
        monkeypatch.setattr("hexkv.contracts.channel._faults.LATE", 5.0)

    def channel(self, secret):
        limits = Limits(64 << 20, patience=3.0)
        place = Address("127.0.0.1")
        return TcpChannel(place, SystemClock(), security=Security(secret), limits=limits)

    @pytest.fixture
    def make(self, monkeypatch):
        self.change(monkeypatch)
        return lambda: self.channel(self.secret)

    @pytest.fixture
    def recipe(self):
        return Recipe("tcp", {"secret": SECRET, "patience": 3.0, "max_frame": 64 << 20})

    @pytest.fixture
    def stranger(self):
        return self.channel(b"another secret")

    @pytest.fixture
    def proxied(self):
        @contextmanager
        def proxied(peer):
            place = Address.parse(peer.address)
            with FaultProxy((place.host, place.port)) as proxy:
                yield proxy, peer._replace(address=proxy.address)

        return proxied


class TestAsksForNoSecret(TcpContract):
    """The secret is left out of every proof."""

    breaks = "channel.11"

    def channel(self, secret):
        return super().channel(b"")


def arriving(landing, after):
    """What waits in *landing*, and where it and *after* are written."""
    waiting, landing._waiting, landing._bytes = landing._waiting, [], 0
    views = [there.into for _, _, there in waiting]
    return waiting, views if after is None else [*views, after]


def hits(landing, waiting):
    for index, _, there in waiting:
        landing._outcomes[index] = Hit(len(there.into))


class TestWritesLate(TcpContract):
    """A thread of its own receives, and goes on when nobody waits for it any more."""

    breaks = "channel.16"

    def change(self, monkeypatch):
        def finish(landing, after=None):
            stream, deadline = landing._stream, landing._deadline
            waiting, views = arriving(landing, after)
            until = Deadline.after(deadline.clock, 60)

            def receive():
                with suppress(Exception):
                    stream.fill_each(views, until)
                if stream in late:
                    right(stream)

            thread = Thread(target=receive, daemon=True)
            thread.start()
            thread.join(deadline.remaining())
            if thread.is_alive():
                late.add(stream)
                raise OutOfTime("too late")
            hits(landing, waiting)

        late = set()
        right = Stream.close
        monkeypatch.setattr(Landing, "finish", finish)
        monkeypatch.setattr(Stream, "close", lambda it: None if it in late else right(it))


class TestHasNoShare(TcpContract):
    """It relies on the caller's lease."""

    breaks = "channel.17"

    def change(self, monkeypatch):
        def finish(landing, after=None):
            waiting, views = arriving(landing, after)
            landing._stream.fill_each(views, landing._deadline)
            hits(landing, waiting)

        monkeypatch.setattr(Landing, "finish", finish)


class TestRaisesWhatIsLate(TcpContract):
    """A deadline that passes is an error of its own."""

    breaks = "channel.18"

    def change(self, monkeypatch):
        def outcome(error):
            raise error

        monkeypatch.setattr(peers, "outcome_of", outcome)


class TestCallsHalfAFrameAHit(TcpContract):
    """What came before the connection broke is what there is."""

    breaks = "channel.19"

    def change(self, monkeypatch):
        right = Landing.finish

        def finish(landing, after=None):
            waiting = landing._waiting
            try:
                right(landing, after)
            except ConnectionBroken:
                hits(landing, waiting)

        monkeypatch.setattr(Landing, "finish", finish)


class TestForgetsWhatItLent(TcpContract):
    """A lease that is not sent to the end is nobody's."""

    breaks = "channel.20"

    def change(self, monkeypatch):
        right = GuardedSource.lend

        def lend(source, keys, deadline):
            return [it and it.share("lent") for it in right(source, keys, deadline)]

        monkeypatch.setattr(GuardedSource, "lend", lend)


class TestKeepsWhatItOffered(TcpContract):
    """Shares of what was offered are released where all of it was sent."""

    breaks = "channel.21"

    def change(self, monkeypatch):
        right = Line.offer

        def offer(line, offers, outcomes, deadline):
            shares = [one.lease.share("channel") for one in offers]
            right(line, offers, outcomes, deadline)
            for share in shares:
                share.release()

        monkeypatch.setattr(Line, "offer", offer)


class TestEachByteBuysTime(TcpContract):
    """As long as something comes it waits on."""

    breaks = "channel.22"

    def change(self, monkeypatch):
        right = Line.read

        def read(line, parts, first, sink, outcomes, deadline):
            later = Deadline.after(deadline.clock, 300)
            right(line, parts, first, sink, outcomes, later)

        monkeypatch.setattr(Line, "read", read)


class TestMissesWhatItDoesNotUnderstand(TcpContract):
    """Nonsense is the answer that there is no such chunk."""

    breaks = "channel.23"

    def change(self, monkeypatch):
        right = peers.outcome_of
        monkeypatch.setattr(
            peers, "outcome_of", lambda e: Miss() if isinstance(e, BadMessage) else right(e)
        )
