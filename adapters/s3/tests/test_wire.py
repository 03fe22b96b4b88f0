"""HTTP as servers speak it, and as they should not."""

import socket
from contextlib import contextmanager
from threading import Thread

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from depth import examples
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.s3._wire import HttpStream
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, StoreUnreachable

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def soon(seconds=60.0):
    return Deadline.after(SystemClock(), seconds)


@contextmanager
def wire(said, *, stay=False):
    """A connection whose other side says this, and hangs up unless it stays."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        speaker = Thread(target=theirs.sendall, args=(said,), daemon=True)
        speaker.start()
        if not stay:
            speaker.join(60)
            theirs.shutdown(socket.SHUT_WR)
        yield HttpStream(Stream(ours))


def test_a_body_goes_where_it_belongs_and_the_connection_is_free_again():
    body = bytes(range(256)) * 400
    said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: x\r\n\r\n" % len(body)
    with wire(said + body, stay=True) as one:
        head = one.head(soon())
        assert (head.status, head.headers["etag"], one.size) == (200, "x", len(body))
        assert not one.free
        into = bytearray(len(body))
        one.fill(memoryview(into)[:1000], soon())
        one.fill(memoryview(into)[1000:], soon())
        same = into == body
        assert same
        assert one.free


@pytest.mark.parametrize(
    "said",
    [
        CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
    ],
)
def test_texts_arrive_in_every_coding(said):
    with wire(said, stay=True) as one:
        one.head(soon())
        assert one.text(100, soon()) == b"abcde"
        assert one.free


def test_a_text_may_end_with_the_connection():
    with wire(b"HTTP/1.1 200 OK\r\n\r\nabcde") as one:
        one.head(soon())
        assert one.text(100, soon()) == b"abcde"
        assert not one.free


@pytest.mark.parametrize(
    "last", ["HTTP/1.0 200 OK\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\n"]
)
def test_a_connection_that_will_be_closed_is_not_free(last):
    with wire(last.encode() + b"Content-Length: 0\r\n\r\n", stay=True) as one:
        one.head(soon())
        assert not one.free


def test_a_reply_to_head_has_no_body_whatever_it_says():
    with wire(b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n", stay=True) as one:
        one.head(soon(), bodiless=True)
        assert one.free


@each(
    "said",
    [
        b"",
        b"+OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 2\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 16),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + bytes(101),
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(101),
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
    ],
)
def test_what_is_no_reply_fails_and_takes_no_memory(said):
    def listen(one):
        one.head(soon())
        one.text(100, soon())

    with wire(said) as one, pytest.raises(StoreUnreachable):
        listen(one)


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300), st.booleans())
@example(b"\r\n\r\n", False)
@example(b"x\r\n\r\n", False)
def test_no_bytes_at_all_make_it_fall_over(noise, honest):
    lead = CHUNKED if honest else b"HTTP/1.1 2"
    with wire(lead + noise) as one:
        try:
            one.head(soon())
            one.text(1000, soon())
        except StoreUnreachable:
            assert not one.free


def test_a_body_that_trickles_costs_the_deadline_and_no_more():
    with wire(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nslow", stay=True) as one:
        one.head(soon())
        with pytest.raises(OutOfTime):
            one.fill(memoryview(bytearray(50)), soon(0.05))
        assert not one.free
