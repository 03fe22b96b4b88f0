"""Promises about several clients: leases that end with them, and announcements."""

from __future__ import annotations

import struct
from collections.abc import Callable
from threading import Thread
from time import monotonic, sleep

from hexkv.adapters.node.blackbox._chunks import content
from hexkv.adapters.node.blackbox._wire import (
    ALL,
    PATIENCE,
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
from hexkv.contracts.kit.waiting import still_running

Connect = Callable[[], RawNode]

MANY = 4096
"""Chunks requested at a time where all free memory is wanted."""

_CLIENTS = 6


def announced(names: list[bytes], group: str, owner: str, seconds: float = 60.0) -> bytes:
    """The body of ``ANNOUNCE``."""
    return struct.pack("<d", seconds) + text(group) + text(owner) + listed(names)


def expected(wire: RawNode, names: list[bytes], group: str, seconds: float = 0.0) -> list[bool]:
    """The answer to ``EXPECT``."""
    body = struct.pack("<d", seconds) + text(group) + listed(names)
    return [byte == 1 for byte in wire.done(NodeVerb.EXPECT, body)]


def granted(wire: RawNode, namespace: bytes, count: int = MANY) -> tuple[int, int]:
    """Lease up to *count* new blocks at once; the request's number, and how many there are."""
    names = [key(f"new{i}", namespace) for i in range(count)]
    request, found = wire.lease(NodeVerb.ALLOCATE, names, seconds=0.2)
    here = [row.here for row in found]
    assert here == sorted(here, reverse=True), "chunks behind one that got no memory have some"
    return request, sum(here)


def until_granted(wire: RawNode, namespace: bytes, count: int) -> None:
    """Lease *count* blocks, once they are free."""
    ends = monotonic() + PATIENCE
    while True:
        request, found = granted(wire, namespace, count)
        wire.release((request, ALL))
        if found >= count:
            return
        assert monotonic() < ends, f"{found} blocks of {count} are free again"
        sleep(0.02)


class NodeClients(NodeCase):
    """Promises about clients beside each other."""

    @promise(
        "node.20",
        "serves several clients at a time, each with its own chunks",
        level=Level.L3,
        clause="connections",
        why="every engine of a machine is a client",
    )
    def test_many_clients_are_served(self, connect: Connect, namespace: bytes) -> None:
        wires = [connect() for _ in range(_CLIENTS)]
        wrong: list[str] = []

        def work(index: int) -> None:
            try:
                for turn in range(6):
                    name = key(f"{index}", namespace)
                    wires[index].count(NodeVerb.FORGET, listed([name]))
                    data = content(100 * index + turn)
                    wires[index].put({name: data})
                    if wires[index].get([name]) not in ([data], [None]):  # it may be evicted
                        wrong.append(f"client {index} got KV of another one")
            except AssertionError as error:
                wrong.append(f"client {index}: {error}")

        threads = [Thread(target=work, args=(i,), daemon=True) for i in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        assert not still_running(threads, 4 * PATIENCE), "a client is not answered"
        assert wrong == []

    @promise(
        "node.21",
        "has memory back that a client gives back, by place or by request, and once",
        level=Level.L1,
        clause="RELEASE",
        why="a pool would shrink with each request",
    )
    def test_leases_are_given_back(self, wire: RawNode, namespace: bytes) -> None:
        request, first = granted(wire, namespace)
        assert first
        wire.release(*[(request, place) for place in range(first)], (request, 0), (request, ALL))
        until_granted(wire, namespace, first)
        for _ in range(3):
            request, _ = granted(wire, namespace)
            wire.release((request, ALL), (request, ALL), (request + 1000, 0))
        until_granted(wire, namespace, first)

    @promise(
        "node.22",
        "has memory back when a client's connection ends",
        level=Level.L4,
        clause="connections",
        why="an engine that crashes would take its memory with it",
    )
    def test_leases_end_with_their_client(self, connect: Connect, namespace: bytes) -> None:
        """Also memory whose request is under way when it ends."""
        first = 0
        for _ in range(32):  # as far as the pool is small, more often than it has room
            wire = connect()
            first = max(first, granted(wire, namespace)[1])
            wire.close()
        other = connect()
        until_granted(other, namespace, first)
        other.begin(NodeVerb.ALLOCATE, b"")
        other.close()
        until_granted(connect(), namespace, first)

    @promise(
        "node.23",
        "publishes no lease that the client does not have",
        level=Level.L2,
        clause="PUBLISH",
        why="a client could publish memory that another one is writing to",
    )
    def test_leases_of_others_are_not_published(self, connect: Connect, namespace: bytes) -> None:
        """Of another client, of no request, of a place that is none, one that was given back."""
        one, other = connect(), connect()
        name = key("a", namespace)
        request, _ = one.lease(NodeVerb.ALLOCATE, [name])
        for names in ([(request, 0)], [(request + 77, 0)]):
            assert other.ask(NodeVerb.PUBLISH, published(names)).status is NodeStatus.INVALID
        assert one.ask(NodeVerb.PUBLISH, published([(request, 1)])).status is NodeStatus.INVALID
        one.release((request, 0))
        assert one.ask(NodeVerb.PUBLISH, published([(request, 0)])).status is NodeStatus.INVALID
        assert one.match([name]) == [""]

    @promise(
        "node.24",
        "expects what clients of other groups announce, until it is published or they end",
        level=Level.L1,
        clause="ANNOUNCE, EXPECT, WITHDRAW",
        why="two engines would compute one prompt, or wait for one that is gone",
    )
    def test_announced_chunks_are_expected(self, connect: Connect, namespace: bytes) -> None:
        one, other = connect(), connect()
        names = [key(name, namespace) for name in ("a", "b", "c")]
        assert one.count(NodeVerb.ANNOUNCE, announced(names[:2], "g1", "o")) == 2
        assert expected(other, names, "g2") == [True, True, False]
        assert expected(other, names, "g1") == [False] * 3
        one.put({names[0]: content(0)})
        assert expected(other, names, "g2") == [False, True, False]
        assert one.count(NodeVerb.WITHDRAW, text("o")) == 1
        assert expected(other, names, "g2") == [False] * 3
        one.count(NodeVerb.ANNOUNCE, announced(names[2:], "g1", "o"))
        one.close()
        ends = monotonic() + PATIENCE
        while expected(other, names, "g2") != [False] * 3:
            assert monotonic() < ends, "an announcement outlives its client"
