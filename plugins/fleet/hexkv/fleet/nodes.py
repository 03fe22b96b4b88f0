"""The nodes of a fleet: found in a directory or a list, and contacted in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from hexkv.ports import (
    Administration,
    Clock,
    Deadline,
    Directory,
    Health,
    HexKVError,
    Member,
    StoreUnreachable,
    TierState,
)

Connect = Callable[[str], Administration]
"""Returns the administration at an address, which has answered."""

T = TypeVar("T")
U = TypeVar("U")

_AT_ONCE = 64
"""Nodes that are contacted at a time."""

_LOCATING = 5.0
"""Seconds for a directory to list its members."""


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node, or the reason that it cannot be reached."""

    name: str
    """In its directory; its address if it reports to none."""

    address: str
    """Of its administration."""

    member: Member | None = None
    admin: Administration | None = None
    """``None`` if there is a problem."""

    problem: str = ""

    def asked(self) -> Administration:
        """Return its administration.

        Raises:
            StoreUnreachable: it cannot be reached.
        """
        if self.admin is None:
            raise StoreUnreachable(f"{self.name}: {self.problem}")
        return self.admin


class NodeState(NamedTuple):
    """The state of a node."""

    name: str
    address: str
    """Of its administration."""

    member: Member | None
    """This life of it, from its directory or from the node itself."""

    seconds: float | None
    """Seconds that it took to answer, just now; ``None``: it did not. If a directory named
    it, that heard of the node within its last three heartbeats all the same."""

    health: Health | None
    tiers: Sequence[TierState]
    room: int
    """Bytes of chunks that it takes without evicting any."""

    problem: str
    """The reason that it could not be reached; empty if it was."""


def find_nodes(
    addresses: Iterable[str], directory: Directory | None, connect: Connect, clock: Clock
) -> list[FleetNode]:
    """Return the nodes at *addresses* and those that *directory* names, each once, by name.

    Raises:
        StoreUnreachable: the directory does not answer.
    """
    members: Sequence[Member] = ()
    if directory is not None:
        members = directory.members(Deadline.after(clock, _LOCATING))
    listed: list[tuple[str, Member | None]] = [(address, None) for address in addresses]
    listed += [(member.admin, member) for member in members]

    def reach(place: tuple[str, Member | None]) -> FleetNode:
        return _reach(*place, connect)

    found: dict[str, FleetNode] = {}
    for node in in_parallel(reach, listed):
        if node.name not in found or found[node.name].admin is None:
            found[node.name] = node
    return [found[name] for name in sorted(found)]


def _reach(address: str, member: Member | None, connect: Connect) -> FleetNode:
    """Return the node at *address*, if it is the expected one."""
    name = member.name if member is not None else address
    if not address:
        return FleetNode(name, address, member, problem="it serves no administration")
    try:
        admin = connect(address)
        seen = admin.member()
    except HexKVError as error:
        return FleetNode(name, address, member, problem=" ".join(str(error).split()))
    if member is None:
        return FleetNode(seen.name if seen else address, address, seen, admin)
    # One path is another node on each machine, and an address may be another's by now.
    if seen is None or (seen.name, seen.generation) != (member.name, member.generation):
        other = "a node that reports to no directory" if seen is None else repr(seen.name)
        problem = f"at {address} another node answers: {other}"
        return FleetNode(name, address, member, problem=problem)
    return FleetNode(name, address, member, admin)


def state_of(node: FleetNode, clock: Clock) -> NodeState:
    """Query the state of a node now."""
    nothing = NodeState(node.name, node.address, node.member, None, None, (), 0, node.problem)
    start = clock.now()
    try:
        admin = node.asked()
        health = admin.status()
        seconds = clock.now() - start
        return nothing._replace(
            seconds=seconds, health=health, tiers=admin.tiers(), room=admin.room()
        )
    except HexKVError as error:
        return nothing._replace(problem=node.problem or " ".join(str(error).split()))


def in_parallel(work: Callable[[T], U], given: Sequence[T]) -> list[U]:
    """Return *work* of each of *given*, in order. Raises its errors."""
    if not given:
        return []
    with ThreadPoolExecutor(min(len(given), _AT_ONCE), "hexkv fleet") as pool:
        return list(pool.map(work, given))


def by_node(
    work: Callable[[FleetNode], U], nodes: Sequence[FleetNode]
) -> tuple[Mapping[str, U], Mapping[str, str]]:
    """Return each node's result by its name, and the errors of the others."""

    def attempt(node: FleetNode) -> U | HexKVError:
        try:
            return work(node)
        except HexKVError as error:
            return error

    found: dict[str, U] = {}
    problems: dict[str, str] = {}
    for node, got in zip(nodes, in_parallel(attempt, nodes), strict=True):
        if isinstance(got, HexKVError):
            problems[node.name] = " ".join(str(got).split())
        else:
            found[node.name] = got
    return found, problems
