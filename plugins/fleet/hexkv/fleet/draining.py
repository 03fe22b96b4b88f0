"""Moving many chunks, and draining a node, in steps: generators as in ``relocation``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from hexkv.fleet.relocation import OUT_SECONDS, Ask, Relocated, Route, relocate, spread
from hexkv.ports import (
    LISTED_KEYS,
    ChunkKey,
    ClaimState,
    HexKVError,
    Peer,
    Progress,
    Selection,
    Watch,
)

PASSES = 8
"""The number of times that a drain looks for chunks that are still only on the node."""

Tokens = Callable[[], str]
"""Names one move after the other, each differently."""

T = TypeVar("T")
Asking = Generator[Ask, Any, T]


def tokens_of(name: str) -> Tokens:
    """Return names for the parts of the work *name*."""
    numbers = count()
    return lambda: f"{name} {next(numbers)}"


@dataclass(slots=True)
class Moved:
    """The result of moving many chunks."""

    chunks: int = 0
    """The number of chunks."""

    done: int = 0
    absent: int = 0
    busy: int = 0
    failed: int = 0
    stopped: bool = False
    kept: list[ChunkKey] = field(default_factory=list)
    """Chunks that no other node holds at the end of a drain."""

    problems: dict[str, str] = field(default_factory=dict)
    """The last error of each node."""

    def add(self, got: Relocated, goal: str) -> None:
        """Add the result of a few of them."""
        self.done += len(got.done)
        self.absent += len(got.absent)
        self.busy += len(got.busy)
        self.failed += len(got.failed)
        if got.problem:
            self.problems[goal] = got.problem


def list_chunks(node: str, chosen: Selection) -> Asking[list[ChunkKey]]:
    """Return the selected chunks of *node*. Raises as the node does."""
    keys: list[ChunkKey] = []
    after: ChunkKey | None = None
    while part := (yield Ask(node, "listing", (chosen, after))):
        keys += part
        after = keys[-1]
    return keys


def relocate_all(
    keys: Sequence[ChunkKey],
    route: Route,
    tokens: Tokens,
    *,
    delete: bool,
    step: int,
    watch: Watch | None = None,
) -> Asking[Moved]:
    """Move or copy chunks, *step* at a time. *watch* may stop it before the next step."""
    moved = Moved(len(keys))
    for start in range(0, len(keys), step):
        if watch is not None and not watch(Progress(start, len(keys))):
            moved.stopped = True
            return moved
        some = keys[start : start + step]
        moved.add((yield from relocate(some, route, tokens(), delete=delete)), route.goal)
    if watch is not None:
        watch(Progress(len(keys), len(keys)))
    return moved


@dataclass(frozen=True, slots=True)
class DrainRules:
    """The rules for draining a node."""

    step: int
    """The number of chunks moved at a time."""

    size: int
    """The approximate bytes of a chunk."""

    hold: float
    """Seconds for which chunks are pinned on other nodes, from the last look on."""

    evict: bool = False
    """True to place chunks where others have to be evicted for them."""


def drain(
    node: str,
    peer: Peer,
    others: Collection[str],
    tokens: Tokens,
    rules: DrainRules,
    watch: Watch | None = None,
) -> Asking[Moved]:
    """Freeze *node*, and copy to *others* the chunks that none of them holds, until there are none.

    Chunks on the others are pinned there before they count as present, so that the result holds for
    the chunks found at the beginning. No chunk is deleted at *node*, which stays frozen.

    Args:
        node: the node to drain.
        peer: the peer that serves its chunks.
        others: nodes that stay; those with space take chunks.
        tokens: names each move.
        rules: the rules of the drain.
        watch: may stop it before the next chunks.
    """
    yield Ask(node, "freeze", (True,))
    moved, owner = Moved(), tokens()
    placed = 0
    tried: dict[ChunkKey, set[str]] = {}
    for _ in range(PASSES):
        keys = yield from list_chunks(node, Selection(everything=True))
        moved.chunks = len(keys)
        only = yield from _only_there(keys, others, owner, rules.hold, moved)
        # A frozen node is no move's goal; chunks that an earlier move relies on are not elsewhere.
        busy = yield from _counted_on(node, keys, owner)
        only += sorted(busy.difference(only))
        moved.kept, moved.done = only, len(keys) - len(only)
        if not only or moved.stopped:
            break
        room = yield from _room(others, moved)
        if rules.evict:
            room = {name: max(free, 1 << 60) for name, free in room.items()}
        before = placed
        for name, some in _plan(only, tried, rules.size, room).items():
            for start in range(0, len(some), rules.step):
                done = moved.done + placed - before
                if watch is not None and not watch(Progress(done, len(keys))):
                    moved.stopped = True
                    return moved
                part = some[start : start + rules.step]
                got = yield from relocate(part, Route(node, peer, name), tokens(), delete=False)
                placed += len(got.done)
                if got.problem:
                    moved.problems[name] = got.problem
                for key in (*got.failed, *got.busy, *got.absent):
                    tried.setdefault(key, set()).add(name)
        if placed == before and not any(len(seen) < len(room) for seen in tried.values()):
            break
    moved.failed = len(moved.kept)
    if watch is not None:
        watch(Progress(moved.done, moved.chunks))
    return moved


def _only_there(
    keys: Sequence[ChunkKey], others: Collection[str], owner: str, hold: float, moved: Moved
) -> Asking[list[ChunkKey]]:
    """Return those of *keys* that no unfrozen one of *others* holds; pin those that they hold."""
    only: list[ChunkKey] = []
    for start in range(0, len(keys), LISTED_KEYS):
        part = tuple(keys[start : start + LISTED_KEYS])
        for name in others:
            if not part:
                break
            try:
                yield Ask(name, "pin", (owner, Selection(keys=part), hold))
                there = yield Ask(name, "holds", (part,))
                # Two drains must not rely on each other's nodes: both freeze theirs before this.
                frozen = (yield Ask(name, "status", ())).frozen
            except HexKVError as error:
                moved.problems[name] = str(error)
                continue
            if not frozen:
                part = tuple(key for key, tier in zip(part, there, strict=True) if tier is None)
        only += part
    return only


def _counted_on(node: str, keys: Sequence[ChunkKey], token: str) -> Asking[set[ChunkKey]]:
    """Return those of *keys* that a move is bringing to *node*."""
    busy: set[ChunkKey] = set()
    for start in range(0, len(keys), LISTED_KEYS):
        part = tuple(keys[start : start + LISTED_KEYS])
        states = yield Ask(node, "claim", (token, part, OUT_SECONDS, True))
        pairs = zip(part, states, strict=True)
        busy.update(key for key, state in pairs if state is ClaimState.REFUSED)
        yield Ask(node, "release", (token,))
    return busy


def _room(others: Collection[str], moved: Moved) -> Asking[dict[str, int]]:
    room: dict[str, int] = {}
    for name in others:
        try:
            free = yield Ask(name, "room", ())
        except HexKVError as error:
            moved.problems[name] = str(error)
            continue
        if free > 0:
            room[name] = free
    return room


def _plan(
    keys: Sequence[ChunkKey],
    tried: Mapping[ChunkKey, Collection[str]],
    size: int,
    room: Mapping[str, int],
) -> dict[str, list[ChunkKey]]:
    """Assign chunks to nodes: none twice to a node that did not take it before."""
    groups: dict[frozenset[str], list[ChunkKey]] = {}
    for key in keys:
        groups.setdefault(frozenset(tried.get(key, ())), []).append(key)
    left = dict(room)
    plan: dict[str, list[ChunkKey]] = {}
    for seen, some in groups.items():
        found = spread(some, size, {name: left[name] for name in left if name not in seen})
        for name, added in found.to.items():
            plan.setdefault(name, []).extend(added)
            left[name] -= size * len(added)
    return plan
