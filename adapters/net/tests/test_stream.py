"""A stream gives what was sent, or fails by its deadline, whatever the other end does."""

import socket
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime
from hexkv.adapters.net.stream import Stream, connect
from hexkv.contracts.doubles import deadline
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, StoreUnreachable
from processes import PATIENCE, held_port

LARGE = 16 << 20
"""Bytes that no socket's buffers hold."""


def soon(seconds=0.05):
    return Deadline.after(SystemClock(), seconds)


@contextmanager
def pair():
    mine, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with mine, theirs:
        yield Stream(mine), theirs


class Pieces(Stream):
    """A stream whose kernel gives and takes no more than so many bytes at a time."""

    def __init__(self, sock, sizes):
        super().__init__(sock)
        self._sizes = [*sizes, 1 << 20]

    def _next(self):
        return self._sizes.pop(0) if len(self._sizes) > 1 else self._sizes[0]

    def _receive(self, into, deadline, *, whole):
        return super()._receive(into[: self._next()], deadline, whole=False)

    def _scatter(self, views, deadline):
        left, some = self._next(), []
        for view in views:
            some.append(view[:left])
            left -= len(some[-1])
        return super()._scatter(some, deadline)

    def _gather(self, views, deadline):
        return super()._gather([views[0][: self._next()]], deadline)


sizes = st.lists(st.integers(1, 40), max_size=20)
parts = st.lists(st.binary(max_size=120), max_size=6)


@given(parts=parts, sizes=sizes)
def test_what_is_sent_in_parts_arrives_whole_and_in_order(parts, sizes):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        Pieces(mine, sizes).send(parts, deadline())
        got = b""
        while len(got) < sum(map(len, parts)):
            got += theirs.recv(1 << 16)
        assert got == b"".join(parts)


@given(parts=parts, sizes=sizes, line=st.binary(max_size=60), behind=st.integers(1, 64))
def test_lines_and_values_are_received_in_whatever_pieces_they_come(parts, sizes, line, behind):
    line = line.replace(b"\n", b"-")
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(line + b"\n" + b"".join(parts) + line + b"\n")
        stream = Pieces(mine, sizes)
        assert stream.take_until(b"\n", 100, deadline(), ahead=behind) == line + b"\n"
        into = [bytearray(len(part)) for part in parts]
        for view in into:
            stream.fill(memoryview(view), deadline())
        assert into == parts
        assert stream.take_until(b"\n", 100, deadline(), ahead=behind) == line + b"\n"
        assert stream.drained
        assert stream.received == 2 * len(line) + 2 + sum(map(len, parts))


@given(
    value=st.binary(max_size=120),
    behind=st.binary(max_size=40),
    ahead=st.integers(0, 60),
    sizes=sizes,
)
def test_a_value_and_what_is_behind_it_arrive_in_whatever_pieces(value, behind, ahead, sizes):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        sent = value + behind
        theirs.sendall(sent[ahead:] + b"!")
        stream = Pieces(mine, sizes)
        stream.give_back(sent[:ahead])
        into, after = bytearray(len(value)), bytearray(len(behind))
        stream.fill_each([memoryview(into), memoryview(after)], deadline())
        assert (into, after) == (value, behind)
        assert stream.take(1, deadline()) == b"!"
        assert stream.received == len(sent[ahead:]) + 1


def test_a_value_lands_in_the_memory_that_it_is_for_with_one_call():
    with pair() as (stream, peer):
        into, seen = bytearray(1 << 20), []
        receive = stream._receive
        stream._receive = lambda *given, **how: seen.append(1) or receive(*given, **how)
        sender = Thread(target=lambda: [peer.sendall(bytes([i]) * 65_536) for i in range(16)])
        sender.start()
        stream.fill(memoryview(into), deadline())
        sender.join(PATIENCE)
        assert into == b"".join(bytes([i]) * 65_536 for i in range(16))
        assert seen == [1]


def test_more_than_a_line_may_have_is_none_and_still_there_to_be_shown():
    with pair() as (stream, peer):
        peer.sendall(b"x" * 300)
        assert stream.take_until(b"\r\n", 100, deadline(), ahead=64) is None
        assert stream.take_some(10, deadline()) == b"x" * 10


def test_what_was_taken_back_comes_again_first():
    with pair() as (stream, peer):
        peer.sendall(b"world")
        stream.give_back(b"hello ")
        assert not stream.drained
        assert stream.take(11, deadline()) == b"hello world"


WAITS = {
    "fill": lambda stream, late: stream.fill(memoryview(bytearray(4)), late),
    "fill_each": lambda stream, late: stream.fill_each([memoryview(bytearray(2))] * 2, late),
    "take": lambda stream, late: stream.take(4, late),
    "take_start": lambda stream, late: stream.take_start(4, late, 0.05),
    "take_until": lambda stream, late: stream.take_until(b"\n", 9, late, ahead=4),
    "skip": lambda stream, late: stream.skip(4, late),
    "send": lambda stream, late: stream.send([bytes(LARGE)], late),
}
waits = each("wait", WAITS.values(), ids=WAITS)


@waits
@each("before", [b"", b"abc"])
def test_a_peer_that_says_nothing_more_costs_the_deadline(wait, before):
    with pair() as (stream, peer):
        peer.sendall(before)
        with pytest.raises(OutOfTime):
            wait(stream, soon())


@waits
def test_a_deadline_that_has_passed_waits_for_nothing(wait):
    with pair() as (stream, peer):
        peer.sendall(b"abcd\n")
        with pytest.raises(OutOfTime):
            wait(stream, Deadline(SystemClock(), 0.0))


@waits
def test_a_peer_that_closes_is_a_broken_connection_that_a_store_may_pass_on(wait):
    with pair() as (stream, peer):
        peer.sendall(b"abc")
        peer.close()
        with pytest.raises(ConnectionBroken) as caught:
            wait(stream, deadline())
        assert isinstance(caught.value, StoreUnreachable)


@waits
def test_a_stream_that_is_aborted_fails_whoever_waits_on_it(wait):
    with pair() as (stream, _):
        stream.abort()
        with pytest.raises(ConnectionBroken):
            wait(stream, deadline())


def test_a_peer_that_trickles_buys_no_time(listener):
    over = Event()
    stream = connect(listener.address, deadline())
    peer = listener.accept()

    def trickle():
        while not over.wait(0.01):
            peer.send(b"x")

    thread = Thread(target=trickle)
    thread.start()
    late = soon(0.2)
    with pytest.raises(OutOfTime):
        stream.fill(memoryview(bytearray(LARGE)), late)
    assert SystemClock().now() - late.at < 20, "all of it takes days"
    over.set()
    thread.join(PATIENCE)
    stream.close()


def test_a_connection_that_the_kernel_gives_up_is_broken_and_not_out_of_time():
    class Gone(socket.socket):
        def recv_into(self, *_):
            raise TimeoutError(110, "Connection timed out")

    mine, theirs = socket.socketpair()
    with Gone(fileno=mine.detach()) as sock, theirs, pytest.raises(ConnectionBroken):
        Stream(sock).take(1, deadline())


def test_a_half_open_peer_costs_the_deadline(listener):
    with FaultProxy((listener.address.host, listener.address.port)) as proxy:
        stream = connect(Address(proxy.host, proxy.port), deadline())
        peer = listener.accept()
        peer.sendall(b"first")
        assert stream.take(5, deadline()) == b"first"
        proxy.half_open()
        with pytest.raises(OutOfTime):
            stream.take(1, soon())
        stream.close()


def test_a_port_where_nobody_listens_is_named():
    address = Address("127.0.0.1", held_port())
    with pytest.raises(ConnectionBroken, match=str(address)):
        connect(address, deadline())


def test_a_host_that_does_not_exist_is_named():
    with pytest.raises(ConnectionBroken, match=r"no-such-host\.invalid"):
        connect(Address("no-such-host.invalid", 1), deadline())
    with pytest.raises(ConnectionBroken):
        connect(Address("x" * 70 + ".invalid", 1), deadline())


def test_a_listener_that_takes_nobody_costs_the_deadline(listener):
    listener.sock.listen(0)
    with ExitStack() as held:

        def fill():
            while True:
                held.callback(connect(listener.address, soon(0.2)).close)

        with pytest.raises(OutOfTime):
            fill()


def test_a_unix_socket_is_connected_by_its_path(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        stream = connect(Address(path=path), deadline())
        stream.close()


def test_only_a_connection_that_is_open_and_silent_is_quiet():
    with pair() as (stream, peer):
        assert stream.quiet
        peer.sendall(b"unasked")
        assert not stream.quiet
    with pair() as (stream, peer):
        peer.close()
        assert not stream.quiet
    with pair() as (stream, _):
        stream.give_back(b"left")
        assert not stream.quiet


def test_a_time_out_of_an_earlier_call_neither_shortens_nor_stretches_a_wait():
    """The kernel keeps one from call to call, which may be a little shorter than the deadline."""
    with pair() as (stream, other):
        sent = stream._arm

        def answer(option, seconds):
            other.send(b"x")
            return sent(option, seconds)

        other.send(b"x")
        assert stream.take(1, soon(PATIENCE)) == b"x"
        with pytest.raises(OutOfTime):
            stream.take(1, soon())
        sent(socket.SO_RCVTIMEO, 0.001)
        stream._armed[socket.SO_RCVTIMEO] = PATIENCE * 7 / 8  # as if that had passed already
        stream._arm = answer  # comes when the deadline is looked at again, which has not passed
        assert stream.take(1, soon(PATIENCE)) == b"x"


def test_what_comes_with_a_message_is_kept_for_the_next_call():
    with pair() as (stream, other):
        other.send(b"headbodynextrest")
        assert stream.take(4, soon(PATIENCE), ahead=8) == b"head"
        assert stream.ahead == 8
        assert not stream.drained
        assert stream.take_start(4, soon(PATIENCE), PATIENCE, ahead=2) == b"body"
        into = bytearray(6)
        stream.fill_each([memoryview(into)[:3], memoryview(into)[3:]], soon(PATIENCE))
        assert (bytes(into), stream.ahead) == (b"nextre", 0)
        assert stream.take_start(1, soon(PATIENCE), PATIENCE, ahead=9) == b"s"
        assert stream.take(1, soon(PATIENCE)) == b"t"
        assert stream.drained
