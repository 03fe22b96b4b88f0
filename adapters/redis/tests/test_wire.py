"""RESP2 in pieces of any size, and whatever else a server may send."""

import socket
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.redis._commands import Ask, Get, Set
from hexkv.adapters.redis._wire import ErrorReply, RedisStream
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
)

KEYS = [chunk_key(str(i)) for i in range(8)]


class Pieces(Stream):
    """A stream whose kernel gives no more than so many bytes at a time."""

    def __init__(self, sock, sizes):
        super().__init__(sock)
        self._sizes = [*sizes, 1 << 20]

    def _receive(self, into, deadline, *, whole):
        size = self._sizes.pop(0) if len(self._sizes) > 1 else self._sizes[0]
        return super()._receive(into[:size], deadline, whole=False)

    def _gather(self, parts, deadline):
        size = max(64, self._sizes[0])  # the other side does not read, and has room for some pieces
        return super()._gather([part[:size] for part in parts[:1]], deadline)


@contextmanager
def wire_of(replies, sizes=()):
    """A wire on which *replies* have come, and nothing more will."""
    mine, theirs = socket.socketpair()
    with closing(mine), closing(theirs):
        theirs.sendall(replies)
        theirs.shutdown(socket.SHUT_WR)
        yield RedisStream(Pieces(mine, sizes))


def bulk(value):
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


sizes = st.lists(st.integers(1, 100), max_size=30)
values = st.lists(st.none() | st.binary(max_size=300), max_size=8)


@given(values=values, sizes=sizes)
def test_values_are_received_in_whatever_pieces_they_come(values, sizes):
    answers, sink = [None] * len(values), ListSink()
    with wire_of(b"".join(map(bulk, values)), sizes) as wire:
        Get(b"p", KEYS, sink).run(wire, range(len(values)), answers, deadline())
    assert answers == [Miss() if value is None else Hit(len(value)) for value in values]
    assert [None if v is None else sink.data(i) for i, v in enumerate(values)] == values


REPLIES = {b":0": False, b":1": True, b"-OOM full": StoreFull, b"-NOPERM no": StoreError}


@given(replies=st.lists(st.sampled_from(sorted(REPLIES)), max_size=8), sizes=sizes)
def test_flags_are_received_in_whatever_pieces_they_come(replies, sizes):
    answers = [None] * len(replies)
    with wire_of(b"".join(reply + b"\r\n" for reply in replies), sizes) as wire:
        Ask(b"EXISTS", b"p", KEYS).run(wire, range(len(replies)), answers, deadline())
    got = [type(a.error) if isinstance(a, Failed) else a for a in answers]
    assert got == [REPLIES[reply] for reply in replies]


@given(garbage=st.binary(max_size=200), sizes=sizes)
def test_garbage_breaks_the_connection_and_nothing_else(garbage, sizes):
    commands = [
        (Ask(b"EXISTS", b"", KEYS), bool | Failed),
        (Get(b"", KEYS, ListSink(refuse=range(1))), object),
        (Set(b"", [Item(key, memoryview(b"x")) for key in KEYS], None), Stored | Failed),
    ]
    for command, kinds in commands:
        answers = [None] * len(KEYS)
        with wire_of(garbage, sizes) as wire:
            try:
                command.run(wire, range(len(KEYS)), answers, deadline())
            except StoreUnreachable:
                continue
        assert all(isinstance(answer, kinds) for answer in answers)


@each(
    "reply",
    [
        b"$99999999999999\r\n",
        b"$-2\r\n",
        b"$1_0\r\n",
        b"$+1\r\nx\r\n",
        b"$\r\n",
        b"$3\r\nabcdef\r\n",
        b"x" * 40_000,
        b"*1\r\n",
        b"",
    ],
)
def test_a_reply_that_is_none_of_resp2_is_not_believed(reply):
    with wire_of(reply) as wire, pytest.raises(StoreUnreachable):
        Get(b"", KEYS, ListSink()).run(wire, [0], [None], deadline())


@each(
    ("sent", "meant"),
    [
        (b"+OK\r\n", b"OK"),
        (b":16383\r\n", 16383),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*2\r\n:1\r\n*1\r\n$2\r\nhi\r\n", [1, [b"hi"]]),
    ],
)
def test_other_replies_are_understood(sent, meant):
    with wire_of(sent) as wire:
        assert wire.reply(deadline()) == meant


def test_arrays_within_arrays_have_an_end():
    with wire_of(b"*1\r\n" * 2000) as wire, pytest.raises(StoreUnreachable, match="RESP2"):
        wire.reply(deadline())


def test_an_error_reply_is_told_apart():
    with wire_of(b"-ERR unknown\r\n") as wire, pytest.raises(ErrorReply, match="ERR unknown"):
        wire.reply(deadline())


@each("sent", [b"", b"$5\r", b"$5\r\nab", b"$5\r\nabcde"])
def test_a_server_that_stops_in_the_middle_costs_the_deadline(sent):
    mine, theirs = socket.socketpair()
    with closing(mine), closing(theirs):
        theirs.sendall(sent)
        soon = Deadline.after(SystemClock(), 0.05)
        with pytest.raises(OutOfTime):
            Get(b"", KEYS, ListSink()).run(RedisStream(Stream(mine)), [0], [None], soon)
        assert -20 < soon.at - SystemClock().now() <= 0  # without it there is no end


def test_a_server_that_takes_nothing_costs_the_deadline():
    mine, theirs = socket.socketpair()
    with closing(mine), closing(theirs):
        soon = Deadline.after(SystemClock(), 0.05)
        item = Item(KEYS[0], memoryview(bytes(8 << 20)))
        with pytest.raises(OutOfTime):
            Set(b"", [item], None).run(RedisStream(Stream(mine)), [0], [None], soon)
