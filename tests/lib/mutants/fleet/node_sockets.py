"""Nodes that answer wrongly over their socket."""

from __future__ import annotations

from struct import pack
from typing import ClassVar

import pytest

from hexkv.adapters.net.rpc.asked import ClientBounds
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.blackbox import NodeSocketContract
from hexkv.adapters.node.server import holding, verbs
from hexkv.adapters.node.server.granted import Granted
from hexkv.adapters.node.server.server import NodeServer
from hexkv.adapters.node.server.session import NodeSession
from hexkv.adapters.node.server.verbs import TOLD, VERBS
from hexkv.adapters.node.wire import (
    ALL,
    HANDSHAKE,
    Reader,
    Verb,
    pack_release,
    pack_words,
    read_release,
)
from hexkv.ports import KEY_BYTES
from mutants.rows import Wrong, broken
from nodes import FRAME, ClientLimits, Node


class ServedContract(NodeSocketContract):
    """A node in a thread, with changes that end with the test."""

    def wrong(self, patch):
        """Make the fault, by *patch*, which is a ``MonkeyPatch``."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        monkeypatch.setattr("hexkv.adapters.node.blackbox._wire.PATIENCE", 2.0)
        monkeypatch.setattr("hexkv.adapters.node.blackbox._clients.PATIENCE", 2.0)

    @pytest.fixture
    def node(self, tmp_path, monkeypatch):
        self.wrong(monkeypatch)
        with Node(tmp_path, limits=ClientLimits(8 * FRAME)) as node:
            yield node.path


def verb(number, change):
    """Change how a verb is handled: *change* gets the session, the request, and what was."""

    def wrong(self, patch):
        real = VERBS[number]
        patch.setitem(VERBS, number, lambda session, asked: change(session, asked, real))

    return wrong


def message_of(number, change):
    """The same for a message without an answer."""

    def wrong(self, patch):
        real = TOLD[number]
        patch.setitem(TOLD, number, lambda session, head, body: change(session, head, body, real))

    return wrong


def method(owner, name, change):
    """Change a method: *change* gets it, and its arguments."""

    def wrong(self, patch):
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **more: change(real, *args, **more))

    return wrong


def answering(change):
    """Have *change* rewrite each answer: it gets the head, the status and the body."""

    def send(real, session, asked, status, body=b""):
        real(session, *change(asked, status, body))

    return method(NodeSession, "send", send)


def turned(asked, status, body):
    if asked.verb != Verb.HOLD or status is not Status.DONE:
        return asked, status, body
    count = int.from_bytes(body[:4], "little")
    column = body[4 + count : 4 + 9 * count]
    offsets = [column[i : i + 8] for i in range(0, len(column), 8)]
    return (
        asked,
        status,
        body[: 4 + count] + b"".join(offsets[-1:] + offsets[:-1]) + body[4 + 9 * count :],
    )


def forgets_none(session, asked, real):
    session.send(asked.head, Status.DONE, pack("<Q", asked.body[0]))


def match_all(session, asked, real):
    count = Reader(asked.body).number()
    session.send(asked.head, Status.DONE, pack_words(["memory"] * count))


def pins_by_keys(session, asked, real):
    reader = Reader(asked.body)
    reader.data(8)
    reader.text()
    keys = reader.keys(reader.count(KEY_BYTES))
    session.send(asked.head, Status.DONE, pack("<Q", len(keys)))


def keeps_header(self, patch):
    patch.setattr(verbs, "_UNSEALED", b"")
    patch.setattr(verbs, "MAGIC", b"")


def releases_places_alone(session, head, body, real):
    real(session, head, pack_release(one for one in read_release(body) if one[1] != ALL))


def believes_leases(real, self, requests, places):
    found = real(self, requests, places)
    if found is None:
        for others in list(Others.all):
            found = found or real(others, requests, places)
    return found


class Others:
    """The leases of all clients."""

    all: ClassVar = []


def publishes_for_all(self, patch):
    Others.all = []
    init = Granted.__init__

    def begin(granted, *args):
        init(granted, *args)
        Others.all.append(granted)

    patch.setattr(Granted, "__init__", begin)
    find = Granted.find
    patch.setattr(Granted, "find", lambda *args: believes_leases(find, *args))


def lets_in_all(real, self, sock, pid, uid, versions):
    return real(self, sock, pid, uid, (2, 2))


def serves_unknown(real, session, asked):
    if asked.head.verb not in VERBS:
        session.send(asked.head, Status.DONE)
    else:
        real(session, asked)


def ignores_tails(self, patch):
    patch.setattr(Reader, "end", lambda reader: None)


def counts_none(self, patch):
    real = NodeSession.__init__

    def begin(session, *args, **more):
        real(session, *args, **more)
        session._bounds = ClientBounds(under_way=1 << 20)

    patch.setattr(NodeSession, "__init__", begin)


def clears_all(session, asked, real):
    real(session, asked._replace(body=b'{"prefixes": null, "tiers": null}'))


def expects_own(session, asked, real):
    reader = Reader(asked.body)
    before, _ = reader.data(8), reader.text()
    real(session, asked._replace(body=before + b"\1?" + asked.body[-reader.left :]))


def announces_for_ever(self, patch):
    patch.setattr(NodeSession, "let_go", lambda session: session.granted.close())


def keeps_all(self, patch):
    patch.setattr(Granted, "close", lambda granted: Others.all.append(granted))


def one_number(asked, status, body):
    return asked._replace(request=asked.request | 1), status, body


def blind_holds(session, asked, real):
    """A held block goes back before the answer that lets its client read it."""
    send = session.send

    def late(head, status, body=b""):
        if status is Status.DONE:
            session.granted.release(asked.head.request)
        send(head, status, body)

    session.send = late
    try:
        real(session, asked)
    finally:
        del session.send


def other_lengths(real, body):
    found = real(body)
    return found._replace(tokens=[16] * len(found.tokens))


def of_any_length(self, patch):
    real = holding.read_wanted
    patch.setattr(holding, "read_wanted", lambda body: other_lengths(real, body))


def folds_namespaces(self, patch):
    def folded(reader, count):
        return [bytes(16) + key[16:] for key in keys(reader, count)]

    keys = Reader.keys
    patch.setattr(Reader, "keys", folded)


def one_for_all(self, patch):
    """The last answer of any client."""
    last = []

    def send(real, session, asked, status, body=b""):
        if asked.verb == Verb.HOLD and status is Status.DONE:
            last.append(body)
            body = last[max(0, len(last) - 2)] if len(last[-1]) == len(body) else body
        real(session, asked, status, body)

    method(NodeSession, "send", send)(self, patch)


def twice_the_pool(self, patch):
    real = HANDSHAKE.challenge
    patch.setattr(HANDSHAKE, "challenge", lambda *said: real(*said[:2], 2 * said[2], *said[3:]))


def no_bound(self, patch):
    real = Granted.__init__
    patch.setattr(Granted, "__init__", lambda granted, most, clock: real(granted, 1 << 60, clock))


ROWS = {
    "node.1 promises more than there is": Wrong(
        "The greeting gives twice the bytes of the pool.", wrong=twice_the_pool
    ),
    "node.2 answers under one number": Wrong(
        "Two requests of neighbouring numbers are answered under one.", wrong=answering(one_number)
    ),
    "node.3 turns offsets": Wrong(
        "The place of each held chunk is that of the one before.", wrong=answering(turned)
    ),
    "node.3 matches all": Wrong("Every chunk is there.", wrong=verb(Verb.MATCH, match_all)),
    "node.4 forgets none": Wrong(
        "A forgotten chunk is counted, and stays.", wrong=verb(Verb.FORGET, forgets_none)
    ),
    "node.5 takes the clients header": Wrong(
        "What a client wrote before its KV is the frame's header.", wrong=keeps_header
    ),
    "node.6 lends until it has answered": Wrong(
        "A held block is free again when the answer is sent.", wrong=verb(Verb.HOLD, blind_holds)
    ),
    "node.7 counts keys": Wrong(
        "A pin counts chunks that are absent.", wrong=verb(Verb.PIN, pins_by_keys)
    ),
    "node.8 folds namespaces": Wrong("The namespace of a key is left out.", wrong=folds_namespaces),
    "node.8 takes any length": Wrong(
        "A chunk is held as one of another length.", wrong=of_any_length
    ),
    "node.20 answers with the last": Wrong(
        "A client gets the places that the client before it got.", wrong=one_for_all
    ),
    "node.21 gives back by place alone": Wrong(
        "A request's number alone gives nothing back.",
        wrong=message_of(Verb.RELEASE, releases_places_alone),
    ),
    "node.22 keeps what was leased": Wrong("Leases outlive their connection.", wrong=keeps_all),
    "node.23 publishes leases of others": Wrong(
        "A lease of any client may be published by any other.", wrong=publishes_for_all
    ),
    "node.24 expects its own": Wrong(
        "A client waits for chunks of its own group.", wrong=verb(Verb.EXPECT, expects_own)
    ),
    "node.24 keeps announcements": Wrong(
        "An announcement outlives its client.", wrong=announces_for_ever
    ),
    "node.30 lets all versions in": Wrong(
        "A client of another version gets the pool.",
        wrong=method(NodeServer, "_let_in", lets_in_all),
    ),
    "node.31 serves any verb": Wrong(
        "A verb that it does not know is done.",
        wrong=method(NodeSession, "respond", serves_unknown),
    ),
    "node.32 ignores tails": Wrong("Bytes behind a body are not looked at.", wrong=ignores_tails),
    "node.33 leases without end": Wrong(
        "A client may lease all memory, whatever the greeting says.", wrong=no_bound
    ),
    "node.34 waits for memory": Wrong(
        "A request waits half a minute, whatever its seconds are.",
        wrong=method(
            NodeSession,
            "until",
            lambda real, session, asked: real(session, asked._replace(seconds=30.0)),
        ),
    ),
    "node.35 queues without end": Wrong(
        "Any number of requests may be under way.", wrong=counts_none
    ),
    "node.36 clears everything": Wrong(
        "A clear of one namespace clears all.", wrong=verb(Verb.CLEAR, clears_all)
    ),
}
globals().update(broken(__name__, ServedContract, None, ROWS))
