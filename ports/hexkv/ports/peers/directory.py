"""The directory of which node holds which chunks: nodes report to it, and peers query it.

**Answers are hints.** A chunk may be gone, or be elsewhere too, by the time that its holder is
queried. Use one only to choose which node to query first: each reader verifies its frames. But a
server's answer contains what each earlier call has reported to it.

Each life of a node has a generation. Entries belong to one membership. :meth:`Directory.join`
begins it; the node's next join, its :meth:`Directory.leave` or its silence ends it: then all its
entries are void at once, without a walk. A node sends its changes in numbered reports; if a number
is missing, or the directory was restarted or forgot the node for another reason, it answers
``False``, and the node joins again with all that it holds.

Errors: a call without an answer by the deadline raises ``StoreUnreachable``; after
:meth:`Directory.close` every call raises ``StoreError``. Called from any thread, except that one
thread at a time makes the calls of a node (join, report, heartbeat, leave).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.errors import InvalidRequest
from hexkv.ports.keys import ChunkKey
from hexkv.ports.runtime._kinds import check_kinds
from hexkv.ports.runtime.clock import Deadline

SILENT_HEARTBEATS = 3
"""The number of missed heartbeats after which a node counts as gone."""

REPORT_KEYS = 4096
"""The most keys in a batch of a snapshot or in a report, added and removed together."""


@dataclass(frozen=True, slots=True)
class Member:
    """One life of a node. Fields out of bounds raise ``InvalidRequest``."""

    name: str
    """The node's name, equal in all its lives; 1 to 255 bytes of UTF-8."""

    generation: int
    """Larger in each later life, below 2**63; see :class:`hexkv.ports.SupportsLives`."""

    address: str = ""
    """Address of the node's chunks; empty if it serves none. At most 1,024 bytes of UTF-8."""

    admin: str = ""
    """Address of its administration; empty if it serves none. At most 255 bytes of UTF-8."""

    def __post_init__(self) -> None:
        texts = {"name": self.name, "address": self.address, "admin": self.admin}
        check_kinds("Member", str, **texts)
        check_kinds("Member", int, generation=self.generation)
        name, address, admin = (len(text.encode()) for text in texts.values())
        fit = 0 < name < 256 and address <= 1024 and admin < 256 and 0 < self.generation < 1 << 63
        if not fit or "\0" in "".join(texts.values()):
            raise InvalidRequest("a member's name, generation or addresses are out of bounds")


class Report(NamedTuple):
    """The chunks that a node added and removed since its last report. No key is in both."""

    sequence: int
    """1 for the first after a join, one more for each that follows."""
    added: Sequence[ChunkKey] = ()
    removed: Sequence[ChunkKey] = ()


@runtime_checkable
class Directory(Protocol):
    """A map from chunks to the members that hold them."""

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats of a member. Never blocks."""
        ...

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        """Begin a membership of *member*, whose entries are those of *snapshot* and no others.

        The entries of an earlier membership of the node are void from the beginning of the call,
        and entries of the snapshot that have arrived may be located before its end.

        *snapshot* has all chunks of the node, in batches of at most ``REPORT_KEYS``, the newest
        first: a directory without room for all leaves out the last ones.

        Returns:
            False if the directory knows a later generation of the node: this life is over.

        Raises:
            InvalidRequest: a batch has more than ``REPORT_KEYS``.
            StoreFull, StoreBusy: it has no room for a member; another process has the name.
            StoreUnreachable: it did not answer in time; the membership may have begun.
        """
        ...

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        """Apply a report, which counts as a heartbeat. An applied report may be sent again.

        Returns:
            False if the node has to join again: a report before this one is missing, or the
            directory does not know this membership.

        Raises:
            InvalidRequest: it has more than ``REPORT_KEYS``.
            StoreUnreachable: the directory did not answer in time.
        """
        ...

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        """Record a heartbeat. *sequence* is that of the last report, or 0 after a join.

        Returns False and raises as :meth:`report`.
        """
        ...

    def leave(self, member: Member, deadline: Deadline) -> None:
        """End the membership of exactly this life, if there is one. Raises as :meth:`locate`."""
        ...

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        """Return for each key the members known to hold it, in no order, possibly none.

        A member that left, or sent no heartbeat for ``SILENT_HEARTBEATS``, is not among them.

        Raises:
            StoreUnreachable: no answer came in time.
        """
        ...

    def members(self, deadline: Deadline) -> Sequence[Member]:
        """Return every member that sent a heartbeat in time. Raises as :meth:`locate`."""
        ...

    def close(self) -> None:
        """Release everything, in less than a second; ends no membership. Twice is allowed."""


@runtime_checkable
class SupportsReplicas(Protocol):
    """A directory on several servers that each have all entries."""

    @property
    def replicas(self) -> Sequence[Directory]:
        """Each server as a directory of its own: a node reports to each one separately."""
        ...
