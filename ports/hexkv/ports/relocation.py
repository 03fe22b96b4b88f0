"""What a node does for chunks that move from node to node: the half of a move at each end.

Nobody decides for both ends at once, so a chunk could be lost between two moves: one brings it
from A to B while another one brings it from B to A, and each deletes what the other counts on. A
**claim** prevents that. Of one chunk on one node either one move may be on its way out, or any
number on their way in. A node deletes for a move only what that move has claimed, and forgets
claims after a while, so a move may end anywhere.

Who moves chunks claims them at both ends, has the goal fetch them, renews the claim at the origin,
has the goal read them while it renews that claim there, and only then has the origin give them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from hexkv.ports.directory import Member
from hexkv.ports.keys import ChunkKey
from hexkv.ports.maintenance import Selection, Watch, WorkReport
from hexkv.ports.transfer import Peer

LISTED_KEYS = 32_768
"""Keys that one call of these takes or gives, at most."""

CLAIM_SECONDS = 600.0
"""The longest claim."""


class ClaimState(StrEnum):
    """What became of a claim on one chunk."""

    HERE = "here"
    """It is claimed, and the node has it."""

    ABSENT = "absent"
    """It is claimed, and the node does not have it."""

    REFUSED = "refused"
    """Another move goes the other way, or both would take it out; or there are too many claims;
    or the node is frozen, and so no place for a chunk to come to."""


class Relocation(Protocol):
    """The verbs at one node. What a node has are the chunks of tiers that nobody else reads.

    Safe from any thread. Each raises ``InvalidRequest`` for more than ``LISTED_KEYS`` keys, and
    ``EngineClosed`` once the cache is closed.
    """

    def member(self) -> Member | None:
        """Return this life of the node, if a directory or peers know it.

        Who was told an address asks this first: others may answer there by now.
        """
        ...

    def listing(self, chosen: Selection, after: ChunkKey | None = None) -> Sequence[ChunkKey]:
        """Return the first chunks behind *after* that the node has, in the order of their keys.

        None only if there are no more.

        Raises:
            InvalidRequest: a tier does not know yet what it holds.
        """
        ...

    def holds(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        """Return for each chunk a tier of the node's own that has it."""
        ...

    def room(self) -> int:
        """Return how many bytes of chunks one of these tiers takes without evicting any.

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
            token: of the move; each has another one.
            keys: the chunks.
            seconds: after which the node forgets about it, at most ``CLAIM_SECONDS``. Meanwhile
                chunks that are on their way in, and here, are not evicted.
            leaving: True where the chunks are to go, False where they are to come to.
            read: ``HERE`` says of each chunk that it was just read from a tier, and verified.
        """
        ...

    def fetch(
        self, keys: Sequence[ChunkKey], origin: Peer, watch: Watch | None = None
    ) -> WorkReport:
        """Read chunks from *origin*, verify them, and keep them as new ones are kept.

        Those that the node has count as done.

        Raises:
            InvalidRequest: the node has no channel to its peers, or is frozen.
            StoreError: *origin* cannot be read from.
        """
        ...

    def give_up(self, token: str, keys: Sequence[ChunkKey]) -> WorkReport:
        """Delete chunks that *token* has claimed on their way out; the others have failed."""
        ...

    def release(self, token: str) -> int:
        """End the claims of a move. How many there were."""
        ...
