"""A node's side of the verbs that announce chunks which clients compute."""

from __future__ import annotations

from struct import pack, unpack

from hexkv.adapters.net.rpc.asked import Request
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.client.announcing import LATER
from hexkv.adapters.node.server.asked import Client
from hexkv.adapters.node.wire import Reader, text
from hexkv.ports import KEY_BYTES, SHARED_OWNER, Deadline, InvalidRequest

_LONGEST = 3_600.0
"""Seconds that an announcement may last."""

_LONGEST_SEARCH = 5.0
"""Seconds that peers have to answer one request; clients with more time repeat it."""

_LONGEST_WAIT = 1.0
"""Seconds at most: a process that takes the node over waits for requests under way."""


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
    """Answer which chunks others compute, once one of them is no longer under way."""
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


def push_to(session: Client, asked: Request) -> None:
    """Have chunks pushed to a peer, and answer with the name of this node among peers."""
    reader = Reader(asked.body)
    (seconds,) = unpack("<d", reader.data(8))
    peer, hold = reader.text(), reader.text()
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    if not 0 <= seconds <= _LONGEST or (hold and not hold.startswith(SHARED_OWNER)):
        raise InvalidRequest("pushed chunks are held under a shared name, for an hour at most")
    pushing = session.served.pushing
    if pushing is not None:
        pushing.push_to(peer, keys, hold, seconds)
    session.send(asked.head, Status.DONE, text("" if pushing is None else pushing.name))


def seek(session: Client, asked: Request) -> None:
    """Answer which chunks others compute, here or at peers; this queries the peers."""
    reader = Reader(asked.body)
    (seconds,) = unpack("<d", reader.data(8))
    group, peer = reader.text(), reader.text()
    keys = reader.keys(reader.count(KEY_BYTES))
    reader.end()
    if not seconds >= 0:
        raise InvalidRequest("a wait lasts no less than no time")
    now = Deadline(session.clock, 0.0)
    announced, pushing = session.served.announced, session.served.pushing
    flags: list[int] = [*announced.expect(keys, group, now)]
    unknown = [key for key, is_coming in zip(keys, flags, strict=True) if not is_coming]
    if not unknown or pushing is None:
        session.send(asked.head, Status.DONE, bytes(flags))
        return
    until = Deadline.after(session.clock, min(seconds, _LONGEST_SEARCH))
    found = pushing.seek(unknown, peer, until)
    no = 0 if found.complete else LATER
    # A chunk that arrived during the search is not expected: the client looks it up again instead
    # of computing it.
    expected = zip(keys, announced.expect(keys, group, now), strict=True)
    said = bytes(1 if comes or key in found.coming else no for key, comes in expected)
    session.send(asked.head, Status.DONE, said)
