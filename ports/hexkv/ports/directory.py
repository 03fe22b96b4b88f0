"""Which node holds which chunks: a directory that nodes report to, and that peers ask.

**Answers are hints.** A chunk may be gone, or be elsewhere too, by the time that its holder is
asked. Nothing may be concluded from an answer but whom to ask first: a wrong one costs a miss, for
frames are verified by who reads them.

Each life of a node has a generation. Entries belong to one membership, which :meth:`Directory.join`
begins and the next one of the node, its :meth:`Directory.leave` or its silence end: then all of
them are void at once, without a walk. A node reports what changed in numbered reports; where a
number is missing, where the directory was started anew, or where it forgot the node for another
reason, it answers ``False``, and the node joins again with all that it holds.

Errors: whatever is not answered by the deadline raises ``StoreUnreachable``; after
:meth:`Directory.close` everything raises ``StoreError``. Called from any thread, except that one
thread at a time speaks for a node (join, report, heartbeat, leave).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports._kinds import check_kinds
from hexkv.ports.clock import Deadline
from hexkv.ports.errors import InvalidRequest
from hexkv.ports.keys import ChunkKey

SILENT_HEARTBEATS = 3
"""Heartbeats after which a node that was not heard of counts as gone."""

REPORT_KEYS = 4096
"""Keys that a batch of a snapshot or a report may have, added and removed together."""


@dataclass(frozen=True, slots=True)
class Member:
    """One life of a node. What means nothing raises ``InvalidRequest``."""

    name: str
    """The node's, equal in all its lives; 1 to 255 bytes of UTF-8."""

    generation: int
    """Larger in each later life, below 2**63; see :class:`hexkv.ports.SupportsLives`."""

    address: str = ""
    """Where the node serves its chunks; empty if it serves none. At most 1,024 bytes of UTF-8."""

    admin: str = ""
    """Where its administration is served; empty: nowhere. At most 255 bytes of UTF-8."""

    def __post_init__(self) -> None:
        texts = {"name": self.name, "address": self.address, "admin": self.admin}
        check_kinds("Member", str, **texts)
        check_kinds("Member", int, generation=self.generation)
        name, address, admin = (len(text.encode()) for text in texts.values())
        fit = 0 < name < 256 and address <= 1024 and admin < 256 and 0 < self.generation < 1 << 63
        if not fit or "\0" in "".join(texts.values()):
            raise InvalidRequest("a member's name, generation or addresses are out of bounds")


class Report(NamedTuple):
    """What a node holds since its last report, and what it holds no more. No key is in both."""

    sequence: int
    """1 for the first after a join, one more for each that follows."""
    added: Sequence[ChunkKey] = ()
    removed: Sequence[ChunkKey] = ()


@runtime_checkable
class Directory(Protocol):
    """Knows which of its members hold a chunk."""

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two signs of life that a member gives. Never blocks."""
        ...

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        """Begin a membership of *member*, whose entries are those of *snapshot* and no others.

        What the node held in an earlier membership is void from the beginning of the call on, and
        what has arrived of the snapshot may be located before its end.

        *snapshot* is all that the node holds, in batches of at most ``REPORT_KEYS``, the newest
        chunks first: a directory that has no room for all leaves out the last ones.

        Returns:
            False if the directory knows a later generation of the node: this life is over.

        Raises:
            InvalidRequest: a batch has more than ``REPORT_KEYS``.
            StoreFull, StoreBusy: it takes no more members; another process has the name.
            StoreUnreachable: it did not answer in time; the membership may have begun.
        """
        ...

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        """Note a report, which is a sign of life, too. One that was noted may be sent again.

        Returns:
            False if the node is to join again: a report before this one is missing, or the
            directory does not know this membership.

        Raises:
            InvalidRequest: it has more than ``REPORT_KEYS``.
            StoreUnreachable: the directory did not answer in time.
        """
        ...

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        """Note a sign of life. *sequence* is that of the last report, or 0 after a join.

        Returns False and raises as :meth:`report`.
        """
        ...

    def leave(self, member: Member, deadline: Deadline) -> None:
        """End the membership of this very life, if there is one. Raises as :meth:`locate`."""
        ...

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        """For each key the members that hold it, in no order; none where nobody is known to.

        A member that left, or gave no sign of life for ``SILENT_HEARTBEATS``, is not among them.

        Raises:
            StoreUnreachable: no answer came in time.
        """
        ...

    def members(self, deadline: Deadline) -> Sequence[Member]:
        """Every member that gave a sign of life in time. Raises as :meth:`locate`."""
        ...

    def close(self) -> None:
        """Release everything, in less than a second; ends no membership. Twice is allowed."""


@runtime_checkable
class SupportsReplicas(Protocol):
    """A directory on several servers that each know everything."""

    @property
    def replicas(self) -> Sequence[Directory]:
        """Each server as a directory of its own: who reports does so to each, by itself."""
        ...
