"""Relocation: move chunks between nodes as a sequence of calls, without I/O.

Each of these is a generator. It yields an :class:`Ask`, is sent the node's answer or thrown its
error, and returns the result for the chunks. The caller makes the calls, and may stop between any
two, or die: finished steps stay done, claims expire, and a repeated move continues from there.

**No move deletes the last copy.** The claim on the way out is renewed at the origin *before* the
goal reads the chunk and renews its claim, for longer. The origin deletes only under its claim; so
whenever it deletes, no move may take the chunk away from the goal yet, and there it is also kept
from eviction.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

from hexkv.ports import ChunkKey, ClaimState, HexKVError, Peer, WorkReport

OUT_SECONDS = 60.0
"""The lifetime of a claim at the origin, from one renewal to the next."""

IN_SECONDS = 240.0
"""The lifetime of a claim at the goal: longer than at the origin, even with inexact clocks."""


class Ask(NamedTuple):
    """A call of a verb of :class:`hexkv.ports.Administration` at a node."""

    node: str
    verb: str
    arguments: tuple[Any, ...]


class Route(NamedTuple):
    """The origin and the goal of a move."""

    origin: str
    peer: Peer
    """The peer that serves the origin's chunks."""

    goal: str


@dataclass(slots=True)
class Relocated:
    """The result for the chunks of one route. Each is in one of the lists."""

    done: list[ChunkKey] = field(default_factory=list)
    """At the goal and, for a move, deleted at the origin. They may have been so before."""

    absent: list[ChunkKey] = field(default_factory=list)
    """Neither at the origin nor at the goal."""

    busy: list[ChunkKey] = field(default_factory=list)
    """Chunks claimed by another move."""

    failed: list[ChunkKey] = field(default_factory=list)
    """Chunks that stay at the origin, as far as is known."""

    problem: str = ""
    """The error of a node, if one failed."""


Relocating = Generator[Ask, Any, Relocated]


def relocate(keys: Sequence[ChunkKey], route: Route, token: str, *, delete: bool) -> Relocating:
    """Bring a few chunks from node to node, as many as one claim is long enough for.

    Args:
        keys: the chunks.
        route: the origin and the goal.
        token: of this move; no other move has the same.
        delete: True to delete those at the origin that are read at the goal.
    """
    moving = _Moving(keys, route, token, delete=delete)
    try:
        yield from moving.run()
    except HexKVError as error:
        moving.got.problem = f"{moving.asked}: {error}"
    moving.got.failed += moving.todo
    for node in moving.claimed:
        try:
            yield Ask(node, "release", (token,))
        except HexKVError as error:  # the claims expire
            moving.got.problem = moving.got.problem or f"{node}: {error}"
    return moving.got


class _Moving:
    """One :func:`relocate` in progress."""

    def __init__(self, keys: Sequence[ChunkKey], route: Route, token: str, *, delete: bool) -> None:
        self.got = Relocated()
        self.todo = list(dict.fromkeys(keys))
        self.asked = ""
        """The node of the current or last call."""

        self.claimed: list[str] = []
        self._route = route
        self._token = token
        self._delete = delete

    def run(self) -> Generator[Ask, Any, None]:
        origin, peer, goal = self._route
        here: dict[str, dict[ChunkKey, bool]] = {}
        # In one order for both directions of moves: of two that conflict, one gets both claims.
        for node in sorted((origin, goal)):
            if node == origin and not self._delete:
                here[node] = dict.fromkeys(self.todo, True)
            else:
                here[node] = yield from self._claim(node)
        gone = [key for key in self.todo if not here[origin][key]]
        self._settle(self.got.absent, [key for key in gone if not here[goal][key]])
        self._settle(self.got.done, gone)  # an earlier move brought them
        missing = tuple(key for key in self.todo if not here[goal][key])
        if missing:
            yield from self._ask(goal, "fetch", missing, peer)
        if self._delete:
            yield from self._claim(origin)
        there = yield from self._claim(goal, read=True)
        arrived = tuple(key for key in self.todo if there[key])
        if self._delete and arrived:
            report: WorkReport = yield from self._ask(origin, "give_up", self._token, arrived)
            if report.failed:
                holds = yield from self._ask(origin, "holds", arrived)
                pairs = zip(arrived, holds, strict=True)
                arrived = tuple(key for key, tier in pairs if tier is None)
        self._settle(self.got.done, arrived)

    def _claim(self, node: str, *, read: bool = False) -> Generator[Ask, Any, dict[ChunkKey, bool]]:
        """Claim the remaining chunks at *node*. Return which of them it holds."""
        leaving = node == self._route.origin
        seconds = OUT_SECONDS if leaving else IN_SECONDS
        keys = tuple(self.todo)
        if node not in self.claimed:
            self.claimed.append(node)
        states = yield from self._ask(node, "claim", self._token, keys, seconds, leaving, read)
        found = dict(zip(keys, states, strict=True))
        refused = [key for key, state in found.items() if state is ClaimState.REFUSED]
        self._settle(self.got.busy, refused)
        return {key: state is ClaimState.HERE for key, state in found.items()}

    def _ask(self, node: str, verb: str, *arguments: Any) -> Generator[Ask, Any, Any]:
        self.asked = node
        return (yield Ask(node, verb, arguments))

    def _settle(self, into: list[ChunkKey], keys: Sequence[ChunkKey]) -> None:
        """Move those of *keys* that remain from ``todo`` to the result *into*."""
        settled = set(keys) & set(self.todo)
        into += [key for key in self.todo if key in settled]
        self.todo = [key for key in self.todo if key not in settled]


class Spread(NamedTuple):
    """The chunks assigned to each node."""

    to: Mapping[str, Sequence[ChunkKey]]
    unplaced: Sequence[ChunkKey]
    """Chunks that no node has space for."""


def spread(keys: Sequence[ChunkKey], size: int, room: Mapping[str, int]) -> Spread:
    """Assign each of *keys*, of *size* bytes, to the node with the most *room* left."""
    heap = [(-free, name) for name, free in room.items() if free >= size]
    heapify(heap)
    to: dict[str, list[ChunkKey]] = {}
    for number, key in enumerate(keys):
        if not heap or -heap[0][0] < size:
            return Spread(to, keys[number:])
        free, name = heap[0]
        to.setdefault(name, []).append(key)
        heapreplace(heap, (free + size, name))
    return Spread(to, ())
