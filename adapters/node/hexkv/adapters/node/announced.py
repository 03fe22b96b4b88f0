"""What a node does for the verbs by which clients tell each other of chunks under way."""

from __future__ import annotations

from struct import pack, unpack

from hexkv.adapters.node.asked import Client, Request
from hexkv.adapters.node.wire import Reader, Status
from hexkv.ports import KEY_BYTES, Deadline, InvalidRequest

_LONGEST = 3_600.0
"""Seconds that an announcement may last."""

_LONGEST_WAIT = 1.0
"""Seconds, not more: a process that takes the node over waits for what is under way."""


def announce(session: Client, asked: Request) -> None:
    """Note chunks that a client computes."""
    reader = Reader(asked.body)
    (seconds,) = unpack("<d", reader.data(8))
    group, owner = reader.text(), reader.text()
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    if not 0 <= seconds <= _LONGEST:
        raise InvalidRequest("an announcement lasts from no time to an hour")
    count = session.served.announced.announce(session.name, owner, group, keys, seconds)
    session.send(asked.head, Status.DONE, pack("<Q", count))


def withdraw(session: Client, asked: Request) -> None:
    """End what a client has announced for one of its owners."""
    reader = Reader(asked.body)
    owner = reader.text()
    reader.end()
    count = session.served.announced.withdraw(session.name, owner)
    session.send(asked.head, Status.DONE, pack("<Q", count))


def expect(session: Client, asked: Request) -> None:
    """Say which chunks others compute, once one of them is not under way any more."""
    reader = Reader(asked.body)
    (seconds,) = unpack("<d", reader.data(8))
    group = reader.text()
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    if not seconds >= 0:
        raise InvalidRequest("a wait lasts no less than no time")
    until = Deadline.after(session.clock, min(seconds, _LONGEST_WAIT))
    flags = session.served.announced.expect(keys, group, until)
    session.send(asked.head, Status.DONE, bytes(flags))
