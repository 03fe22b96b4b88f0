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
from hexkv.ports import Corrupt, Deadline, Failed, Hit, Miss, Stored, StoreError
from mutants.rows import Wrong, broken

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


def keeps_what_is_corrupt(self, real, source, index, part, sink, deadline):
    (lent,) = source.lend([part.key], self._name, deadline)
    if lent is not None and not double.is_frame(lent.frame, part.key):
        return Corrupt("of another chunk")
    if lent is not None:
        lent.release()
    return real(source, index, part, sink, deadline)


def offers_each_key_once(self, real, peer, offers, deadline):
    return real(peer, list({offer.key: offer for offer in offers}.values()), deadline)


def serves_after_the_end(self):
    self._closed = True


def answers_hits_first(self, real, peer, wanted, sink, deadline):
    outcomes = real(peer, wanted, sink, deadline)
    return sorted(outcomes, key=lambda outcome: not isinstance(outcome, Hit))


def reads_from_the_start(self, real, source, index, part, sink, deadline):
    return real(source, index, part._replace(start=0), sink, deadline)


def reads_so_many_chunks(self, real, peer, wanted, sink, deadline):
    some = real(peer, wanted[:4096], sink, deadline)
    return [*some, *[Miss()] * (len(wanted) - 4096)]


def stops_at_a_refusal(self, real, peer, wanted, sink, deadline):
    outcomes = list(real(peer, wanted, sink, deadline))
    first = next((i for i, it in enumerate(outcomes) if isinstance(it, Miss)), None)
    return outcomes if first is None else [*outcomes[:first], *[outcomes[first]] * 4][:4]


def believes_the_source(self, monkeypatch):
    monkeypatch.setattr(double, "is_frame", lambda frame, key: True)


def asks_any_life(self, real, peer, wanted, sink, deadline):
    return real(peer._replace(generation=0), wanted, sink, deadline)


def reads_what_was_asked_last(self, real, peer, wanted, sink, deadline):
    self.wanted = wanted
    Event().wait(0.01)
    return real(peer, self.wanted, sink, deadline)


def reads_too_late(self, real, peer, wanted, sink, deadline):
    later = Deadline.after(deadline.clock, 60)
    return real(peer, wanted, sink, later)


def fails_all_for_one(self, real, peer, offers, deadline):
    outcomes = real(peer, offers, deadline)
    failed = next((it for it in outcomes if isinstance(it, Failed)), None)
    return outcomes if failed is None else [failed] * len(outcomes)


def plants_anything(self, monkeypatch):
    monkeypatch.setattr(double, "is_frame", lambda frame, key: True)


def offers_a_few(self, real, peer, offers, deadline):
    rest = [Failed(StoreError("too many"))] * len(offers[8:])
    return [*real(peer, offers[:8], deadline), *rest]


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


def arriving(landing, after):
    """What waits in *landing*, and where it and *after* are written."""
    waiting, landing._waiting, landing._bytes = landing._waiting, [], 0
    views = [there.into for _, _, there in waiting]
    return waiting, views if after is None else [*views, after]


def hits(landing, waiting):
    for index, _, there in waiting:
        landing._outcomes[index] = Hit(len(there.into))


def writes_late(self, monkeypatch):
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


def has_no_share(self, monkeypatch):
    def finish(landing, after=None):
        waiting, views = arriving(landing, after)
        landing._stream.fill_each(views, landing._deadline)
        hits(landing, waiting)

    monkeypatch.setattr(Landing, "finish", finish)


def raises_what_is_late(self, monkeypatch):
    def outcome(error):
        raise error

    monkeypatch.setattr(peers, "outcome_of", outcome)


def calls_half_a_frame_a_hit(self, monkeypatch):
    right = Landing.finish

    def finish(landing, after=None):
        waiting = landing._waiting
        try:
            right(landing, after)
        except ConnectionBroken:
            hits(landing, waiting)

    monkeypatch.setattr(Landing, "finish", finish)


def forgets_what_it_lent(self, monkeypatch):
    right = GuardedSource.lend

    def lend(source, keys, deadline):
        return [it and it.share("lent") for it in right(source, keys, deadline)]

    monkeypatch.setattr(GuardedSource, "lend", lend)


def keeps_what_it_offered(self, monkeypatch):
    right = Line.offer

    def offer(line, offers, outcomes, deadline):
        shares = [one.lease.share("channel") for one in offers]
        right(line, offers, outcomes, deadline)
        for share in shares:
            share.release()

    monkeypatch.setattr(Line, "offer", offer)


def each_byte_buys_time(self, monkeypatch):
    right = Line.read

    def read(line, parts, first, sink, outcomes, deadline):
        later = Deadline.after(deadline.clock, 300)
        right(line, parts, first, sink, outcomes, later)

    monkeypatch.setattr(Line, "read", read)


def each_piece_buys_time(self, monkeypatch):
    right = Stream._receive

    def receive(stream, into, deadline, *, whole):
        return right(stream, into, Deadline.after(deadline.clock, 1.0), whole=False)

    monkeypatch.setattr(Stream, "_receive", receive)


def misses_what_it_does_not_understand(self, monkeypatch):
    right = peers.outcome_of
    monkeypatch.setattr(
        peers, "outcome_of", lambda e: Miss() if isinstance(e, BadMessage) else right(e)
    )


LOCAL_CHANNEL = {
    "channel.7 keeps corrupt frames": Wrong(
        "What was lent and is no frame of the chunk stays lent.", _read=keeps_what_is_corrupt
    ),
    "channel.12 offers each key once": Wrong(
        "A chunk that is offered twice has one outcome.", offer=offers_each_key_once
    ),
    "channel.1 serves after the end": Wrong(
        "Who is closed is found by its peers all the same.", close=serves_after_the_end
    ),
    "channel.2 answers hits first": Wrong(
        "Outcomes come in an order of their own.", read=answers_hits_first
    ),
    "channel.3 reads from the start": Wrong(
        "A range begins where the frame does.", _read=reads_from_the_start
    ),
    "channel.4 reads so many chunks": Wrong(
        "What there is more of in a batch is absent.", read=reads_so_many_chunks
    ),
    "channel.5 stops at a refusal": Wrong(
        "Behind a part that there is no room for nothing is read.", read=stops_at_a_refusal
    ),
    "channel.6 cuts questions": Wrong(
        "Of a long question the beginning is asked.",
        ask=lambda self, real, peer, question, deadline: real(peer, question[:1000], deadline),
    ),
    "channel.8 asks any life": Wrong(
        "A peer that was started anew is the same peer.", read=asks_any_life
    ),
    "channel.9 reads what was asked last": Wrong(
        "Calls have one list of what is wanted.", read=reads_what_was_asked_last
    ),
    "channel.10 reads too late": Wrong(
        "A deadline that has passed counts for nothing.", read=reads_too_late
    ),
    "channel.12 sends nothing": Wrong(
        "Every chunk is said to be there already.",
        offer=lambda self, peer, offers, deadline: [Stored(0)] * len(offers),
    ),
    "channel.13 fails all for one": Wrong(
        "Where there is no room for one chunk, none is stored.", offer=fails_all_for_one
    ),
    "channel.15 offers a few": Wrong("Of a batch the first eight are offered.", offer=offers_a_few),
}
globals().update(broken(__name__, LocalContract, LocalChannel, LOCAL_CHANNEL))


LOCAL_CONTRACT = {
    "channel.7 believes the source": Wrong(
        "Whatever a source lends is the chunk that it was asked for.", change=believes_the_source
    ),
    "channel.14 plants anything": Wrong(
        "What is offered is what it is said to be.", change=plants_anything
    ),
}
globals().update(broken(__name__, LocalContract, None, LOCAL_CONTRACT))


TCP_CONTRACT = {
    "channel.11 asks for no secret": Wrong(
        "The secret is left out of every proof.", channel=lambda self, real, secret: real(b"")
    ),
    "channel.16 writes late": Wrong(
        "A thread of its own receives, and goes on when nobody waits for it any more.",
        change=writes_late,
    ),
    "channel.17 has no share": Wrong("It relies on the caller's lease.", change=has_no_share),
    "channel.18 raises what is late": Wrong(
        "A deadline that passes is an error of its own.", change=raises_what_is_late
    ),
    "channel.19 calls half a frame a hit": Wrong(
        "What came before the connection broke is what there is.", change=calls_half_a_frame_a_hit
    ),
    "channel.20 forgets what it lent": Wrong(
        "A lease that is not sent to the end is nobody's.", change=forgets_what_it_lent
    ),
    "channel.21 keeps what it offered": Wrong(
        "Shares of what was offered are released where all of it was sent.",
        change=keeps_what_it_offered,
    ),
    "channel.22 each piece buys time": Wrong(
        "A time-out is one of each receive.", change=each_piece_buys_time
    ),
    "channel.22 each byte buys time": Wrong(
        "As long as something comes it waits on.", change=each_byte_buys_time
    ),
    "channel.23 misses what it does not understand": Wrong(
        "Nonsense is the answer that there is no such chunk.",
        change=misses_what_it_does_not_understand,
    ),
}
globals().update(broken(__name__, TcpContract, None, TCP_CONTRACT))
