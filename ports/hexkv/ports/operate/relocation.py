"""Relocation of chunks from node to node: the part of a move at each of its two nodes.

No process decides for both nodes at once, so a chunk could be lost between two moves: one copies
it from A to B while another one copies it from B to A, and each deletes the other's source. A
**claim** prevents that. A chunk on a node may be claimed either by one move out of the node, or by
any number of moves into it. A node deletes for a move only chunks that the move has claimed, and
drops claims after a while, so a move may end at any step.

A mover claims the chunks at both nodes, has the goal fetch them, renews the claim at the origin,
has the goal read them while it renews the claim there, and only then has the origin give them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from hexkv.ports.keys import ChunkKey
from hexkv.ports.operate.maintenance import Selection, Watch, WorkReport
from hexkv.ports.peers.directory import Member
from hexkv.ports.peers.transfer import Peer

LISTED_KEYS = 32_768
"""The most keys that one call takes or returns."""

CLAIM_SECONDS = 600.0
"""Seconds of the longest claim."""


class ClaimState(StrEnum):
    """The outcome of a claim on one chunk."""

    HERE = "here"
    """It is claimed, and the node has it."""

    ABSENT = "absent"
    """It is claimed, and the node does not have it."""

    REFUSED = "refused"
    """Another move goes the other way, or both would take it out; or there are too many claims;
    or the node is frozen and takes no chunks."""


class Relocation(Protocol):
    """The verbs at one node. A node has the chunks of those tiers that no other process reads.

    Safe from any thread. Each raises ``InvalidRequest`` for more than ``LISTED_KEYS`` keys, and
    ``EngineClosed`` once the cache is closed.
    """

    def member(self) -> Member | None:
        """Return this life of the node, if a directory or peers know it.

        Callers with only an address call this first: another node may answer there by now.
        """
        ...

    def listing(self, chosen: Selection, after: ChunkKey | None = None) -> Sequence[ChunkKey]:
        """Return the first chunks behind *after* that the node has, in the order of their keys.

        Empty only at the end.

        Raises:
            InvalidRequest: the content of a tier is still being listed.
        """
        ...

    def holds(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        """Return for each chunk a tier of the node's own that has it, or ``None``."""
        ...

    def room(self) -> int:
        """Return how many bytes of chunks one of the node's own tiers takes without evicting any.

        0 if the node is frozen.
        """
        ...

    def claim(
        self,
        token: str,
        keys: Sequence[ChunkKey],
        seconds: float,
        leaving: bool = False,
        read: bool = False,
    ) -> Sequence[ClaimState]:
        """Claim chunks for the move *token*, or renew its claims.

        Args:
            token: of the move; unique to it.
            keys: the chunks.
            seconds: after which the claim ends, at most ``CLAIM_SECONDS``. Until then the chunks
                of a move into this node that are here are not evicted.
            leaving: True at the origin of the move, False at its goal.
            read: read each chunk from a tier and verify it, before it counts as ``HERE``.
        """
        ...

    def fetch(
        self, keys: Sequence[ChunkKey], origin: Peer, watch: Watch | None = None
    ) -> WorkReport:
        """Read chunks from *origin*, verify them, and store them as new ones.

        Chunks that the node has already count as done.

        Raises:
            InvalidRequest: the node has no channel to its peers, or is frozen.
            StoreError: *origin* cannot be read from.
        """
        ...

    def give_up(self, token: str, keys: Sequence[ChunkKey]) -> WorkReport:
        """Delete chunks that *token* has claimed to move out; the others count as failed."""
        ...

    def release(self, token: str) -> int:
        """End the claims of a move. Return how many there were."""
        ...
