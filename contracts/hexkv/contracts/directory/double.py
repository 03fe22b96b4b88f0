"""A directory in plain dictionaries: the port's meaning in as few lines as possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from hexkv.ports import (
    REPORT_KEYS,
    SILENT_HEARTBEATS,
    ChunkKey,
    Clock,
    Deadline,
    InvalidRequest,
    Member,
    Report,
    StoreError,
    StoreUnreachable,
)


@dataclass
class Membership:
    """The entry of a node."""

    member: Member
    heard: float
    sequence: int = 0
    keys: set[ChunkKey] = field(default_factory=set)


class DictDirectory:
    """A directory of this process. For tests: all nodes share one object."""

    heartbeat_seconds = 1.0

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.nodes: dict[str, Membership] = {}
        self.answers = True
        """False if every call is to fail as not answered in time."""
        self._closed = False
        self._lock = Lock()
        """Held while nodes come, go or are listed: their threads share this object."""

    def forget(self) -> None:
        """Lose everything, as a server does at a restart."""
        self.nodes = {}

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        self._check(deadline)
        known = self.nodes.get(member.name)
        if known is not None and known.member.generation > member.generation:
            return False
        node = Membership(member, self.clock.now())
        with self._lock:
            self.nodes[member.name] = node
        for batch in snapshot:
            _bounded(len(batch))
            node.keys |= set(batch)
        return True

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        _bounded(len(report.added) + len(report.removed))
        node = self._heard(member, deadline)
        if node is None or report.sequence > node.sequence + 1:
            return False
        if report.sequence == node.sequence + 1:
            node.keys = (node.keys - set(report.removed)) | set(report.added)
            node.sequence = report.sequence
        return True

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        node = self._heard(member, deadline)
        return node is not None and sequence <= node.sequence

    def leave(self, member: Member, deadline: Deadline) -> None:
        if self._heard(member, deadline) is not None:
            with self._lock:
                del self.nodes[member.name]

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        self._check(deadline)
        alive = self._alive()
        return [[node.member for node in alive if key in node.keys] for key in keys]

    def members(self, deadline: Deadline) -> Sequence[Member]:
        self._check(deadline)
        return [node.member for node in self._alive()]

    def close(self) -> None:
        self._closed = True

    def _alive(self) -> list[Membership]:
        since = self.clock.now() - SILENT_HEARTBEATS * self.heartbeat_seconds
        with self._lock:
            return [node for node in self.nodes.values() if node.heard > since]

    def _heard(self, member: Member, deadline: Deadline) -> Membership | None:
        self._check(deadline)
        node = self.nodes.get(member.name)
        if node is None or node.member.generation != member.generation:
            return None
        node.heard = self.clock.now()
        return node

    def _check(self, deadline: Deadline) -> None:
        if self._closed:
            raise StoreError("the directory is closed")
        if deadline.expired or not self.answers:
            raise StoreUnreachable("no answer came in time")


def _bounded(count: int) -> None:
    if count > REPORT_KEYS:
        raise InvalidRequest(f"more than {REPORT_KEYS} keys")
