"""A keyed cache in another process, whose memory this process has mapped.

The other process owns the memory and decides which client may use which block of it. Its leases
work as in one process: a lease ends with its release, or with the end of the process that holds
it, and its memory is not reused before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.chunk_cache import ChunkLeases
from hexkv.ports.hold import Hold, Publishing
from hexkv.ports.keys import ChunkKey
from hexkv.ports.lease import Lease
from hexkv.ports.operate.health import Health
from hexkv.ports.results import Cleared
from hexkv.ports.runtime.clock import Deadline


class ServiceHold(Hold, Protocol):
    """A hold that was requested, and may not be answered yet."""

    def known(self, deadline: Deadline) -> bool:
        """True once ``reasons`` is known for absent chunks, though others are on their way.

        Waits for that up to *deadline*.
        """
        ...

    def keep(self, deadline: Deadline) -> bool:
        """Remove the time limit of a hold: from now on it lasts until its release.

        Its leases must not be read before this. True at once for a hold without a limit.

        Returns:
            False if the service has taken it back, or does not answer: then it is released.
        """
        ...


@runtime_checkable
class ChunkService(ChunkLeases, Protocol):
    """The lease half of a keyed cache that another process serves. Safe from any thread.

    While the other process does not answer, chunks are missing, there is no memory to allocate,
    and nothing is published: no call raises for that, and none takes longer than its deadline.
    The connection is restored automatically.
    """

    @property
    def pool_bytes(self) -> int:
        """Bytes of the shared memory; of the last one, while there is none."""
        ...

    def fits(self, payload_bytes: int) -> bool:
        """True if a chunk of *payload_bytes* could ever be leased. Needs no connection."""
        ...

    def hold(
        self,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        *,
        seconds: float | None = None,
    ) -> ServiceHold:
        """Hold chunks as every keyed cache does; does not wait for the other process.

        With *seconds* the hold is limited in time: the other process takes it back that long after
        the request, in any state of this process, unless :meth:`ServiceHold.keep` came before.
        """
        ...

    def reserve(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> ServiceHold:
        """Allocate as ``allocate`` without a wait for memory; does not wait for the answer, either.

        The leases are for the first of *wanted*, and empty as those of ``allocate``.
        *deadline* is that of the answer.
        """
        ...

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        """Publish chunks as every keyed cache does; does not wait for the other process.

        ``tiers`` of the result is the content of the other process's latest answer.
        """
        ...

    def sweep(self, owner: str) -> int:
        """Take back all leases that *owner*, which is gone, still holds. Return how many."""
        ...

    def ledger(self) -> Mapping[str, int]:
        """Return the number of leases of each owner in this process. Empty at rest."""
        ...

    def clear(
        self, prefixes: Collection[bytes] | None, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        """Delete every chunk whose key begins with one of *prefixes*, or every one for ``None``.

        Raises:
            InvalidRequest: there is no such tier.
        """
        ...

    def health(self, deadline: Deadline) -> Health | None:
        """Return the state of the other process's cache; ``None`` if it does not answer."""
        ...

    def close(self) -> None:
        """Release everything and end the connection. Calling it twice is allowed.

        Memory with views stays mapped until the last view of it is gone.
        """
        ...


@runtime_checkable
class SupportsListing(Protocol):
    """A service that lists the chunks in its memory to authorized clients."""

    def in_memory(self, after: ChunkKey | None, deadline: Deadline) -> Sequence[ChunkSpec] | None:
        """Return some of the chunks in memory with keys behind *after*, in the order of keys.

        All of them are held raw. Empty at the end. ``None`` if the service does not answer.

        Raises:
            InvalidRequest: this process is not allowed to list them.
        """
        ...
