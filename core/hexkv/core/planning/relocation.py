"""Moving chunks between nodes, and emptying one: what to ask which node next, and nothing else.

Each of these is a generator. It gives an :class:`Ask`, is sent the answer or thrown the error of
the node, and returns what became of the chunks. Who runs it does the talking, and may stop between
any two asks, or die: what was done stays done, claims expire, and the same again goes on from
there.

**No move deletes the last copy.** The claim on the way out is renewed at the origin *before* the
goal reads the chunk and renews its claim, for longer. The origin deletes only under its claim; so
whenever it deletes, no move may take the chunk away from the goal yet, and there it is kept from
eviction, too.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

from hexkv.ports import ChunkKey, ClaimState, HexKVError, Peer, WorkReport

OUT_SECONDS = 60.0
"""A claim at the origin, from one renewal to the next."""

IN_SECONDS = 240.0
"""A claim at the goal: it outlasts the one at the origin whatever the clocks are worth."""


class Ask(NamedTuple):
    """A call of a verb of :class:`hexkv.ports.Administration` at a node."""

    node: str
    verb: str
    arguments: tuple[Any, ...]


class Route(NamedTuple):
    """From where to where."""

    origin: str
    peer: Peer
    """Where the origin serves its chunks."""

    goal: str


@dataclass(slots=True)
class Relocated:
    """What became of the chunks of one route. Each is in one of the lists."""

    done: list[ChunkKey] = field(default_factory=list)
    """At the goal, and, of a move, at the origin no more. So they may have been before."""

    absent: list[ChunkKey] = field(default_factory=list)
    """Neither at the origin nor at the goal."""

    busy: list[ChunkKey] = field(default_factory=list)
    """Another move has them."""

    failed: list[ChunkKey] = field(default_factory=list)
    """They stay at the origin, as far as that is known."""

    problem: str = ""
    """The error that a node gave, if one did."""


Relocating = Generator[Ask, Any, Relocated]


def relocate(keys: Sequence[ChunkKey], route: Route, token: str, *, delete: bool) -> Relocating:
    """Bring a few chunks from node to node, as many as a claim lasts for.

    Args:
        keys: the chunks.
        route: from where to where.
        token: of this move; no other one has it.
        delete: True to have them no more at the origin, for those that are read at the goal.
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
    """One :func:`relocate` under way."""

    def __init__(self, keys: Sequence[ChunkKey], route: Route, token: str, *, delete: bool) -> None:
        self.got = Relocated()
        self.todo = list(dict.fromkeys(keys))
        self.asked = ""
        """The node that is asked, or was asked last."""

        self.claimed: list[str] = []
        self._route = route
        self._token = token
        self._delete = delete

    def run(self) -> Generator[Ask, Any, None]:
        origin, peer, goal = self._route
        here: dict[str, dict[ChunkKey, bool]] = {}
        # In one order whichever way a move goes: of two that meet, one gets both claims.
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
        """Claim at *node* what is still to be done. Which chunks of it are there."""
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
        """Of those of *keys* that are still to be done it is known what became of them."""
        settled = set(keys) & set(self.todo)
        into += [key for key in self.todo if key in settled]
        self.todo = [key for key in self.todo if key not in settled]


class Spread(NamedTuple):
    """Which chunks go to which node."""

    to: Mapping[str, Sequence[ChunkKey]]
    unplaced: Sequence[ChunkKey]
    """Those for which no node has room."""


def spread(keys: Sequence[ChunkKey], size: int, room: Mapping[str, int]) -> Spread:
    """Give each of *keys*, of *size* bytes, to the node with the most *room* left."""
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
