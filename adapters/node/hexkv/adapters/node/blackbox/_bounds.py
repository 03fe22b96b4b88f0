"""Promises about clients that ask too much, too late, or nonsense."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic

from hexkv.adapters.node.blackbox._chunks import clear, content
from hexkv.adapters.node.blackbox._clients import announced, granted
from hexkv.adapters.node.blackbox._wire import (
    ALL,
    PATIENCE,
    NodeCase,
    NodeStatus,
    NodeVerb,
    RawNode,
    key,
    listed,
    text,
    wanted,
)
from hexkv.contracts.kit.promise import Level, promise

Connect = Callable[[], RawNode]


@contextmanager
def still_serving(connect: Connect, namespace: bytes) -> Iterator[None]:
    """Check that other clients are served as before after the block."""
    other = connect()
    name = key("kept", namespace)
    other.put({name: content(7)})
    yield
    assert other.get([name]) == [content(7)]
    assert connect().get([name]) == [content(7)]


class NodeBounds(NodeCase):
    """Promises about clients that do not follow the protocol."""

    @promise(
        "node.30",
        "turns away a client of another version, with no bytes of pool and no descriptor",
        level=Level.L4,
        clause="greeting",
        why="an engine of another version would take frames for what they are not",
    )
    def test_other_versions_are_turned_away(
        self, node: Path, connect: Connect, namespace: bytes
    ) -> None:
        with still_serving(connect, namespace):
            for versions in ((1, 2), (2, 1), (3, 2)):
                with RawNode(node, *versions) as wire:
                    assert wire.welcome.pool_bytes == 0
                    assert wire.descriptors == []
                    assert wire.ends()

    @promise(
        "node.31",
        "answers INVALID to a request that means nothing, and serves on",
        level=Level.L4,
        clause="requests",
        why="a new verb of a later engine would cost it its connection",
    )
    def test_what_means_nothing_is_invalid(self, wire: RawNode, namespace: bytes) -> None:
        """An unknown verb; a chunk larger than the pool, of which nothing is leased."""
        assert wire.ask(999).status is NodeStatus.INVALID
        name = key("a", namespace)
        for verb in (NodeVerb.ALLOCATE, NodeVerb.HOLD):
            assert wire.ask(verb, wanted([name], tokens=(1 << 32) - 1)).status is NodeStatus.INVALID
        wire.put({name: content(0)})
        assert wire.get([name]) == [content(0)]

    @promise(
        "node.32",
        "ends the connection of a client that speaks no protocol, and serves the others",
        level=Level.L4,
        clause="requests",
        why="one engine gone wrong would stop the cache of all",
    )
    def test_nonsense_ends_a_connection(self, connect: Connect, namespace: bytes) -> None:
        """Bodies too short, too long or beyond the bound, another life, times that are none."""
        with still_serving(connect, namespace):
            name = key("a", namespace)
            count = struct.pack("<I", 1 << 31)
            for verb, body in (
                (NodeVerb.MATCH, listed([name])[:-1]),
                (NodeVerb.MATCH, listed([name]) + b"!"),
                (NodeVerb.MATCH, count + name),
                (NodeVerb.HOLD, wanted([name], space=1)),
                (NodeVerb.HOLD, wanted([name], tokens=0)),
                (NodeVerb.PUBLISH, b"\0" + count),
                (NodeVerb.CLEAR, b"[" * 5000),
            ):
                broken(connect(), partial(RawNode.begin, verb=verb, body=body))
            for seconds in (-1.0, float("nan"), float("inf")):
                broken(connect(), partial(RawNode.begin, verb=NodeVerb.PING, seconds=seconds))
            broken(connect(), other_life)
            broken(connect(), too_long)

    @promise(
        "node.33",
        "leases a client at most the bytes of the greeting at a time",
        level=Level.L4,
        clause="ALLOCATE, HOLD",
        why="one client would take the memory of all",
    )
    def test_a_client_has_a_bound(self, connect: Connect, namespace: bytes) -> None:
        wire = connect()
        request, count = granted(wire, namespace)
        _, found = wire.lease(NodeVerb.ALLOCATE, [key("one more", namespace)])
        size = 4096 + 1024
        assert count * size <= wire.welcome.leased_bytes
        assert not found or not found[0].here or (count + 1) * size <= wire.welcome.leased_bytes
        wire.release((request, ALL))

    @promise(
        "node.34",
        "answers within the seconds of a request, also for memory that does not come",
        level=Level.L4,
        clause="seconds",
        why="a request would wait for the cache longer than computing takes",
    )
    def test_answers_come_in_time(self, connect: Connect, namespace: bytes) -> None:
        """A hold while all memory is leased; with no time at all; a wait for announced chunks."""
        wire, other = connect(), connect()
        name = key("a", namespace)
        other.put({name: content(0)})
        for _ in range(16):
            if not granted(connect(), namespace)[1]:
                break
        for seconds in (0.0, 0.2):
            before = monotonic()
            other.ask(NodeVerb.HOLD, wanted([name]), seconds)
            other.ask(NodeVerb.ALLOCATE, wanted([key("b", namespace)]), seconds)
            assert monotonic() - before < PATIENCE / 2
        wire.count(NodeVerb.ANNOUNCE, announced([key("c", namespace)], "g", "o"))
        before = monotonic()
        body = struct.pack("<d", 0.1) + text("h") + listed([key("c", namespace)])
        assert other.done(NodeVerb.EXPECT, body) == b"\1"
        assert monotonic() - before < PATIENCE / 2

    @promise(
        "node.35",
        "answers BUSY to more requests under way than the greeting allows",
        level=Level.L4,
        clause="requests",
        why="a client could queue requests without end",
    )
    def test_requests_under_way_have_a_bound(self, connect: Connect, namespace: bytes) -> None:
        one, other = connect(), connect()
        names = [key("a", namespace)]
        one.count(NodeVerb.ANNOUNCE, announced(names, "g", "o"))
        body = struct.pack("<d", 1.0) + text("h") + listed(names)
        most = other.welcome.under_way
        if most > 4096:
            return
        data = b"".join(
            other.message(NodeVerb.EXPECT, other.number(), body) for _ in range(most + 4)
        )
        other.sock.sendall(data)
        found = [other.answer().status for _ in range(most + 4)]
        assert NodeStatus.BUSY in found
        assert found.count(NodeStatus.DONE) >= most

    @promise(
        "node.36",
        "reports its health in JSON, and clears a namespace",
        level=Level.L1,
        clause="HEALTH, CLEAR",
        why="old weights' KV would be served on",
    )
    def test_a_namespace_is_cleared(self, wire: RawNode, namespace: bytes) -> None:
        names = [key("a", namespace), key("a", bytes(byte ^ 1 for byte in namespace))]
        wire.put(dict.fromkeys(names, content(0)))
        assert isinstance(json.loads(wire.done(NodeVerb.HEALTH)), dict)
        cleared = wire.done(NodeVerb.CLEAR, clear(namespace))
        assert isinstance(json.loads(cleared), dict)
        assert [bool(tier) for tier in wire.match(names)] == [False, True]
        wire.done(NodeVerb.CLEAR, clear(names[1][:16]))
        assert wire.match(names) == ["", ""]


def broken(wire: RawNode, send: Callable[[RawNode], object]) -> None:
    """Check that the node ends the connection after *send*, or refuses that request."""
    send(wire)
    assert wire.refuses(), "the node answers, or keeps the connection"
    wire.close()


def other_life(wire: RawNode) -> None:
    """Send a request to another life of the node."""
    said = wire.welcome
    wire.welcome = said._replace(generation=said.generation ^ 1)
    wire.begin(NodeVerb.PING)
    wire.welcome = said


def too_long(wire: RawNode) -> None:
    """Announce a body beyond the bound."""
    head = bytearray(wire.message(NodeVerb.MATCH, wire.number(), b""))
    head[:4] = struct.pack("<I", wire.welcome.body_bytes + 1)
    wire.sock.sendall(head)
