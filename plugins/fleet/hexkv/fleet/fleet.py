"""Administration of all nodes: their chunks, and work on them everywhere."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Self, TypeVar

from hexkv.fleet.draining import (
    DrainRules,
    drain,
    list_chunks,
    relocate_all,
    tokens_of,
)
from hexkv.fleet.nodes import (
    Connect,
    FleetNode,
    NodeState,
    by_node,
    find_nodes,
    in_parallel,
    state_of,
)
from hexkv.fleet.relocation import Route
from hexkv.fleet.reports import FleetReport, report_of, summed
from hexkv.fleet.running import Going, run
from hexkv.ports import (
    KEY_BYTES,
    Administration,
    ChunkKey,
    Clock,
    Directory,
    HexKVError,
    InvalidRequest,
    NamespaceState,
    Peer,
    Progress,
    Selection,
    StoreUnreachable,
    Watch,
    WorkReport,
)

_STEP_BYTES = 256 << 20
"""Bytes of the chunks that are moved between two checks of the watch, roughly."""

_NOTHING = Selection(keys=(ChunkKey(bytes(KEY_BYTES)),))
"""A selection of no existing chunk: a verb with it tests whether it could be done."""

_UNKNOWN_SIZE = 32 << 20

T = TypeVar("T")


class Fleet:
    """Every node that a directory or a list names. Not safe from several threads at a time.

    Verbs that change something contact all nodes first. They raise before anything changes:
    ``StoreUnreachable`` if a node cannot be reached, unless it may be left out, and
    ``InvalidRequest`` if something cannot be done. A watch stops them before the next chunks;
    finished work stays, and the same call again continues from there.

    Args:
        connect: reaches a node's administration.
        clock: for deadlines.
        directory: names nodes; closed with this.
        addresses: of the administration of further nodes.
        partial: whether nodes that cannot be reached may be left out.
    """

    def __init__(
        self,
        connect: Connect,
        clock: Clock,
        *,
        directory: Directory | None = None,
        addresses: Iterable[str] = (),
        partial: bool = False,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._directory = directory
        self._addresses = tuple(addresses)
        self._partial = partial
        self._found: list[FleetNode] | None = None
        self._closing = ExitStack()
        if directory is not None:
            self._closing.callback(directory.close)

    def nodes(self) -> Sequence[NodeState]:
        """Return the state of each node, or the reason that it cannot be reached."""
        self._found = None
        return in_parallel(lambda node: state_of(node, self._clock), self._all())

    def namespaces(self) -> Sequence[NamespaceState]:
        """Return the namespaces of chunks; ``chunks`` counts by node, on its largest tier."""
        found: dict[bytes, NamespaceState] = {}
        by_name, _ = self._ask(lambda admin: admin.namespaces(), self._all())
        for name, states in by_name.items():
            for state in states:
                known = found.get(state.prefix) or state._replace(chunks={})
                counts = {**known.chunks, name: max(state.chunks.values(), default=0)}
                found[state.prefix] = NamespaceState(
                    state.prefix,
                    known.identity or state.identity,
                    known.tenant or state.tenant,
                    counts,
                )
        return sorted(found.values(), key=lambda state: -sum(state.chunks.values()))

    def holds(self, keys: Sequence[ChunkKey]) -> Mapping[str, Sequence[str | None]]:
        """Return, by node that answers, the tier of its own that has each chunk."""
        return self._ask(lambda admin: admin.holds(keys), self._all())[0]

    def pin(
        self,
        owner: str,
        chosen: Selection,
        seconds: float | None = None,
        on: Collection[str] | None = None,
    ) -> FleetReport:
        """Keep chunks from eviction wherever they are."""
        chosen = self._resolved(chosen)
        return self._counted(lambda admin: admin.pin(owner, chosen, seconds), on)

    def unpin(self, owner: str, on: Collection[str] | None = None) -> FleetReport:
        """End the pins of an owner."""
        return self._counted(lambda admin: admin.unpin(owner), on)

    def clear(
        self, chosen: Selection, on: Collection[str] | None = None, watch: Watch | None = None
    ) -> FleetReport:
        """Delete chunks everywhere, pinned ones included."""
        chosen = self._resolved(chosen)
        return self._worked(lambda admin, each: admin.clear(chosen, None, each), on, watch)

    def compress(
        self,
        chosen: Selection,
        tier: str,
        serde: str,
        on: Collection[str] | None = None,
        watch: Watch | None = None,
    ) -> FleetReport:
        """Encode chunks in place, on the tier of that name of each node."""
        chosen = self._resolved(chosen)
        nodes = self._chosen(on)
        _, problems = self._ask(lambda admin: admin.compress(_NOTHING, tier, serde), nodes)
        if problems:
            raise InvalidRequest(_listed(problems))
        return self._worked(
            lambda admin, each: admin.compress(chosen, tier, serde, each), on, watch
        )

    def copy(
        self,
        chosen: Selection,
        origin: str,
        goal: str,
        watch: Watch | None = None,
        *,
        evict: bool = False,
    ) -> FleetReport:
        """Copy chunks of node *origin* to node *goal*.

        With *evict* even if others have to be evicted for them.
        """
        return self._relocate(chosen, origin, goal, watch, delete=False, evict=evict)

    def move(
        self,
        chosen: Selection,
        origin: str,
        goal: str,
        watch: Watch | None = None,
        *,
        evict: bool = False,
    ) -> FleetReport:
        """Copy chunks, and delete from *origin* those that were read at *goal*."""
        return self._relocate(chosen, origin, goal, watch, delete=True, evict=evict)

    def drain(
        self,
        name: str,
        to: Collection[str] | None = None,
        watch: Watch | None = None,
        *,
        hold: float = 600.0,
        evict: bool = False,
    ) -> FleetReport:
        """Freeze a node, and copy the chunks that only it has to other nodes, by default to any.

        Chunks that others have too are pinned there for *hold* seconds: time enough to end the
        node. It stays frozen, also if this is stopped. ``kept`` lists the chunks that could not be
        placed.
        """
        node = self._named(name)
        rest = [other for other in self._chosen(None) if other.name != name]
        others = rest if to is None else [self._named(other) for other in to]
        if not others or node in others:
            raise InvalidRequest(f"name other nodes than {name!r} for its chunks to go to")
        peer = _peer(node)
        takers = [other for other in others if self._takes(other, peer)]
        if not takers:
            raise InvalidRequest("no other node takes chunks: each is frozen or has no peers")
        size = _mean_bytes(node.asked())
        rules = DrainRules(_step(size), size, hold, evict)
        tokens = tokens_of(f"drain {secrets.token_hex(8)}")
        going = Going(watch)
        others_named = [other.name for other in takers]
        moved = run(drain(name, peer, others_named, tokens, rules, going), self._all(), going)
        return report_of(moved, name)

    def close(self) -> None:
        """Close the directory. Calling it twice is allowed."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _relocate(
        self,
        chosen: Selection,
        origin: str,
        goal: str,
        watch: Watch | None,
        *,
        delete: bool,
        evict: bool,
    ) -> FleetReport:
        source, target = self._named(origin), self._named(goal)
        if source is target:
            raise InvalidRequest(f"{origin!r} is both: name two nodes")
        peer = _peer(source)
        target.asked().fetch((), peer)  # raises if it is not possible
        going = Going(watch)
        keys = run(list_chunks(origin, self._resolved(chosen)), self._all(), going)
        size = _mean_bytes(source.asked())
        self._check_room(keys, size, target, evict=evict)
        moved = run(
            relocate_all(
                keys,
                Route(origin, peer, goal),
                tokens_of(f"{'move' if delete else 'copy'} {secrets.token_hex(8)}"),
                delete=delete,
                step=_step(size),
                watch=going,
            ),
            self._all(),
            going,
        )
        return report_of(moved, goal)

    def _check_room(
        self, keys: Sequence[ChunkKey], size: int, target: FleetNode, *, evict: bool
    ) -> None:
        free = target.asked().room()
        if not free and target.asked().status().frozen:
            raise InvalidRequest(f"{target.name!r} is frozen: it keeps nothing new")
        there = target.asked().holds(keys) if keys else ()
        need = size * sum(tier is None for tier in there)
        if need > free and not evict:
            raise InvalidRequest(
                f"{target.name!r} has room for {free:,} bytes, and the chunks take about {need:,}:"
                " choose fewer, or let it evict others"
            )

    def _takes(self, node: FleetNode, peer: Peer) -> bool:
        try:
            node.asked().fetch((), peer)
        except HexKVError:
            return False
        return True

    def _all(self) -> list[FleetNode]:
        if self._found is None:
            self._found = find_nodes(self._addresses, self._directory, self._connect, self._clock)
        return self._found

    def _named(self, name: str) -> FleetNode:
        """Return the node of that name, after a check that it can be reached.

        Raises:
            InvalidRequest: there is none.
            StoreUnreachable: it cannot be reached.
        """
        nodes = self._all()
        for node in nodes:
            if node.name == name:
                node.asked()
                return node
        there = ", ".join(node.name for node in nodes) or "none"
        raise InvalidRequest(f"no node is called {name!r}; there are: {there}")

    def _chosen(self, on: Collection[str] | None) -> list[FleetNode]:
        """Return the nodes of these names, by default all that can be reached.

        Raises:
            InvalidRequest: there is no such node, or there is none at all.
            StoreUnreachable: one of them cannot be reached, and may not be left out.
        """
        if on is not None:
            return [self._named(name) for name in dict.fromkeys(on)]
        nodes = self._all()
        silent = [f"{node.name}: {node.problem}" for node in nodes if node.admin is None]
        if silent and not self._partial:
            raise StoreUnreachable(f"cannot be asked: {'; '.join(silent)}")
        there = [node for node in nodes if node.admin is not None]
        if not there:
            raise InvalidRequest("there is no node")
        return there

    def _resolved(self, chosen: Selection) -> Selection:
        """Return *chosen* in a form for nodes that do not know the tenant."""
        if not chosen.tenant:
            return chosen
        states = self.namespaces()
        prefixes = [state.prefix for state in states if state.tenant == chosen.tenant]
        if not prefixes:
            names = ", ".join(sorted({state.tenant for state in states} - {""})) or "none"
            raise InvalidRequest(f"no node has chunks of {chosen.tenant!r}; there are: {names}")
        return Selection(namespaces=tuple(prefixes), oldest=chosen.oldest)

    def _ask(
        self, work: Callable[[Administration], T], nodes: Sequence[FleetNode]
    ) -> tuple[Mapping[str, T], Mapping[str, str]]:
        return by_node(lambda node: work(node.asked()), nodes)

    def _counted(
        self, work: Callable[[Administration], int], on: Collection[str] | None
    ) -> FleetReport:
        counts, problems = self._ask(work, self._chosen(on))
        total = sum(counts.values())
        return FleetReport(total, total, nodes=counts, problems=problems)

    def _worked(
        self,
        work: Callable[[Administration, Watch], WorkReport],
        on: Collection[str] | None,
        watch: Watch | None,
    ) -> FleetReport:
        """Do the same on each node in parallel; the watch receives the sum of their progress."""
        lock = Lock()
        far: dict[str, Progress] = {}

        def attempt(node: FleetNode) -> WorkReport:
            def each(progress: Progress) -> bool:
                with lock:
                    far[node.name] = progress
                    done, of = (sum(column) for column in zip(*far.values(), strict=True))
                    return watch is None or watch(Progress(done, of))

            return work(node.asked(), each)

        reports, problems = by_node(attempt, self._chosen(on))
        return summed(reports, problems)


def _peer(node: FleetNode) -> Peer:
    """Return the address at which a node serves its chunks.

    Raises:
        InvalidRequest: there is none.
    """
    if node.member is None or not node.member.address:
        raise InvalidRequest(f"{node.name!r} serves no chunks to peers: its section peers is off")
    return Peer(node.member.address, node.member.generation)


def _mean_bytes(admin: Administration) -> int:
    """Return the mean bytes of the node's chunks, rounded up; the most of any of its tiers."""
    sizes = [
        -(-tier.used_bytes // tier.chunks)
        for tier in admin.status().tiers
        if tier.chunks and tier.used_bytes
    ]
    return max(sizes, default=_UNKNOWN_SIZE)


def _step(size: int) -> int:
    return max(8, min(512, _STEP_BYTES // size))


def _listed(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in problems.items())
