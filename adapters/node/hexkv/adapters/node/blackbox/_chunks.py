"""Promises about data: the greeting, and chunks from ``ALLOCATE`` to ``HOLD``."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Sequence
from random import Random

from hexkv.adapters.net.unix import is_sealed
from hexkv.adapters.node.blackbox._wire import (
    ALL,
    HEADER_BYTES,
    MAGIC,
    SIZE,
    NodeCase,
    NodeStatus,
    NodeVerb,
    RawNode,
    key,
    listed,
    published,
    text,
)
from hexkv.contracts.kit.promise import Level, promise

Connect = Callable[[], RawNode]


def clear(namespace: bytes, tiers: Sequence[str] | None = None) -> bytes:
    """The body of ``CLEAR`` for all of a namespace, by default on every tier."""
    return json.dumps({"prefixes": [namespace.hex()], "tiers": tiers}).encode()


def content(seed: int) -> bytes:
    """The KV of a chunk."""
    return Random(seed).randbytes(SIZE)  # noqa: S311 - nothing here is secret


class NodeChunks(NodeCase):
    """Promises about a single client."""

    @promise(
        "node.1",
        "greets with its versions and bounds, and passes the sealed memory of its pool",
        level=Level.L0,
        clause="greeting",
        why="an access to memory that shrinks ends the engine with SIGBUS",
        hint="seal the file against shrinking, and pass its descriptor with the greeting",
    )
    def test_it_greets(self, wire: RawNode) -> None:
        said = wire.welcome
        assert (said.magic, said.version, said.frame_version) == (MAGIC, 2, 2)
        assert len(wire.descriptors) == 1
        assert is_sealed(wire.descriptors[0], said.pool_bytes)
        assert os.fstat(wire.descriptors[0]).st_size >= said.pool_bytes > 0
        assert said.leased_bytes > 0
        assert 0 < said.largest <= said.pool_bytes
        assert said.under_way > 0
        assert said.body_bytes >= 1 << 16

    @promise(
        "node.2",
        "answers each request under its number, whole or in pieces, one or many at a time",
        level=Level.L0,
        clause="requests",
        why="an answer under another number is taken for that of another request",
    )
    def test_requests_have_numbers(self, wire: RawNode) -> None:
        numbers = [wire.number() for _ in range(8)]
        data = b"".join(wire.message(NodeVerb.PING, number, b"") for number in numbers)
        wire.sock.sendall(data[:40])
        wire.sock.sendall(data[40:])
        found = [wire.answer() for _ in numbers]
        assert {(one.verb, one.status) for one in found} == {(NodeVerb.PING, NodeStatus.DONE)}
        assert sorted(one.request for one in found) == numbers

    @promise(
        "node.3",
        "gives back the KV that was published, at a place in the pool, in the order asked for",
        level=Level.L1,
        clause="ALLOCATE, PUBLISH, HOLD",
        why="an engine would compute on with other KV",
    )
    def test_what_is_published_is_held(
        self, wire: RawNode, connect: Connect, namespace: bytes
    ) -> None:
        """By another client, twice in a batch, with an absent chunk between."""
        names = [key(name, namespace) for name in ("a", "b", "c")]
        wire.put({names[0]: content(0), names[1]: content(1)})
        other = connect()
        asked = [names[1], names[2], names[0], names[1]]
        assert other.get(asked) == [content(1), None, content(0), content(1)]
        assert [bool(tier) for tier in other.match(asked)] == [True, False, True, True]

    @promise(
        "node.4",
        "reports why a chunk is missing, and forgets chunks, with their number",
        level=Level.L1,
        clause="HOLD, FORGET",
        why="an engine would look for KV that is gone, at each request",
    )
    def test_what_is_forgotten_is_absent(self, wire: RawNode, namespace: bytes) -> None:
        names = [key(name, namespace) for name in ("a", "b")]
        wire.put(dict.fromkeys(names, content(0)))
        assert wire.count(NodeVerb.FORGET, listed([names[0], key("never", namespace)])) == 1
        request, found = wire.lease(NodeVerb.HOLD, names)
        assert [row.here for row in found] == [False, True]
        assert found[0].word == "absent"
        wire.release((request, ALL))
        assert wire.match(names)[0] == ""

    @promise(
        "node.5",
        "writes the header of a chunk itself, whatever the client wrote before its KV",
        level=Level.L2,
        clause="PUBLISH",
        why="a client could plant a frame under another chunk's key",
    )
    def test_a_client_writes_no_header(
        self, wire: RawNode, connect: Connect, namespace: bytes
    ) -> None:
        """A right header of the same key, which an earlier frame had, before other KV."""
        name = key("a", namespace)
        wire.put({name: content(0)})
        _, held = wire.lease(NodeVerb.HOLD, [name])
        assert wire.count(NodeVerb.FORGET, listed([name])) == 1
        request, found = wire.lease(NodeVerb.ALLOCATE, [name])
        start, of = found[0].offset, held[0].offset
        wire.pool[start : start + HEADER_BYTES] = wire.pool[of : of + HEADER_BYTES]
        wire.payload(found[0])[:] = content(1)
        wire.done(NodeVerb.PUBLISH, published([(request, 0)]))
        wire.release((request, ALL))
        assert connect().get([name]) == [content(1)]
        wire.done(NodeVerb.FLUSH)  # a slower tier may have taken the header with it
        first = wire.match([name])
        wire.done(NodeVerb.CLEAR, clear(namespace, first))
        if wire.match([name]) != [""]:
            assert wire.get([name]) == [content(1)]

    @promise(
        "node.6",
        "keeps held KV as it is until it is given back, though the chunk is forgotten",
        level=Level.L2,
        clause="HOLD",
        why="KV would change while it is copied to the device",
    )
    def test_what_is_held_stays(self, wire: RawNode, connect: Connect, namespace: bytes) -> None:
        name = key("a", namespace)
        wire.put({name: content(0)})
        _, found = wire.lease(NodeVerb.HOLD, [name])
        other = connect()
        other.count(NodeVerb.FORGET, listed([name]))
        fresh: list[memoryview] = []
        _, more = other.lease(NodeVerb.ALLOCATE, [key(f"n{i}", namespace) for i in range(8)])
        for row in more:
            if row.here:
                fresh.append(other.payload(row))
                fresh[-1][:] = content(2)
        assert fresh, "no memory for one more chunk"
        assert bytes(wire.payload(found[0])) == content(0)

    @promise(
        "node.7",
        "counts the chunks of a pin, and ends the pins of an owner",
        level=Level.L1,
        clause="PIN, UNPIN",
        why="chunks that no request needs would stay for ever",
    )
    def test_pins_are_counted(self, wire: RawNode, connect: Connect, namespace: bytes) -> None:
        """Of this client alone; seconds below zero, of a century, or no number are INVALID."""
        names = [key(name, namespace) for name in ("a", "b", "absent")]
        wire.put(dict.fromkeys(names[:2], content(0)))
        assert wire.count(NodeVerb.PIN, pin(60.0, names)) == 2
        assert connect().count(NodeVerb.UNPIN, text("owner")) == 0
        assert wire.count(NodeVerb.UNPIN, text("owner")) == 2
        for seconds in (-1.0, float("nan"), 3.2e9):
            assert wire.ask(NodeVerb.PIN, pin(seconds, names)).status is NodeStatus.INVALID, seconds

    @promise(
        "node.8",
        "keeps namespaces and lengths apart",
        level=Level.L5,
        clause="SPACE",
        why="a tenant would get another one's KV",
    )
    def test_namespaces_are_apart(self, wire: RawNode, namespace: bytes) -> None:
        """One digest of a chunk in two namespaces, and a chunk as one of another length."""
        other = bytes(byte ^ 1 for byte in namespace)
        wire.put({key("a", namespace): content(0)})
        assert wire.get([key("a", other)]) == [None]
        request, found = wire.lease(NodeVerb.HOLD, [key("a", namespace)], tokens=8)
        assert [row.here for row in found] == [False]
        wire.release((request, ALL))
        assert wire.get([key("a", namespace)]) == [content(0)]


def pin(seconds: float, names: list[bytes]) -> bytes:
    """The body of ``PIN`` for the owner ``owner``."""
    return struct.pack("<d", seconds) + text("owner") + listed(names)
