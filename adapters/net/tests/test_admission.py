"""Connections within limits: what is counted, what the log says, and what is given away."""

import logging
import socket

import pytest

from hexkv.adapters.net.errors import BadMessage, OutOfTime
from hexkv.adapters.net.server.admission import Admission
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.stream import Stream
from hexkv.contracts.doubles import ManualClock
from processes import until


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_client_that_says_nothing_has_the_time_for_its_first_byte_alone(pair):
    clock = ManualClock()
    limits = Limits(1 << 20, patience=60.0, first=1.0)
    connection = Connection(Stream(pair[0]), limits, clock)
    clock.advance(1.0)
    with pytest.raises(OutOfTime):
        connection.await_first()
    pair[1].send(b"x")
    connection.await_first()  # it came while nothing looked


def test_the_log_has_a_line_at_once_and_then_one_a_minute_with_the_count(caplog):
    clock = ManualClock()

    def refuse(connection):
        raise BadMessage("no greeting")

    admission = Admission(refuse, clock, Limits(1 << 20), name="a listener")

    def refused(count):
        for _ in range(count):
            before = admission.turned_away.total()
            one, other = socket.socketpair()
            admission.admit(one)
            until(lambda before=before: admission.turned_away.total() > before)
            other.close()

    with caplog.at_level(logging.WARNING, "hexkv"):
        refused(3)
        clock.advance(60.0)
        refused(1)
        until(lambda: len(caplog.messages) == 2)
    assert caplog.messages == [
        "a listener: connections turned away: 1 refused (no greeting)",
        "a listener: connections turned away: 2 refused (no greeting)",
    ]


def test_a_socket_that_is_given_away_is_blocking_and_its_place_is_free(pair):
    given, handed = [], []

    def give(connection):
        assert connection.begin(1) == b"a"  # with a time-out of the kernel
        given.append(admission.release(connection))
        handed.append(admission.clients)

    admission = Admission(give, ManualClock(), Limits(1 << 20, patience=60.0), connections=1)
    ours, theirs = pair
    admission.admit(ours.dup())
    theirs.send(b"ab")
    until(lambda: handed)
    admission.end(60.0)
    (sock,) = given
    with sock:
        assert handed == [0]
        assert sock.gettimeout() is None
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == bytes(16)
        assert sock.recv(1) == b"b"
