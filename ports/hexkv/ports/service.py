"""A keyed cache in another process, whose memory this process has mapped.

The other process owns the memory and decides who may use which block of it. What it lends is
leased here as in one process: a lease is given back by its release, or by the end of the process
that holds it, and its memory is not reused before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.chunk_cache import ChunkLeases
from hexkv.ports.clock import Deadline
from hexkv.ports.health import Health
from hexkv.ports.hold import Hold, Publishing
from hexkv.ports.keys import ChunkKey
from hexkv.ports.memory import Lease
from hexkv.ports.results import Cleared


class ServiceHold(Hold, Protocol):
    """A hold that was asked for, and is not answered yet."""

    def known(self, deadline: Deadline) -> bool:
        """True once ``reasons`` says which chunks are not there, though others are on their way.

        Waits for that up to *deadline*.
        """
        ...

    def keep(self, deadline: Deadline) -> bool:
        """Have a hold that was limited in time last until its release, from now on.

        Before this its leases must not be read. True at once for one without a limit.

        Returns:
            False if the service has taken it back, or does not answer: then it is released.
        """
        ...


@runtime_checkable
class ChunkService(ChunkLeases, Protocol):
    """The lease half of a keyed cache that another process serves. Safe from any thread.

    While the other process does not answer, chunks are missing, there is no memory to allocate,
    and nothing is published: no call raises for that, and none takes longer than its deadline.
    The connection is made again without being asked for.
    """

    @property
    def pool_bytes(self) -> int:
        """Bytes of the memory that is shared; of the last one, while there is none."""
        ...

    def fits(self, payload_bytes: int) -> bool:
        """True if a chunk of *payload_bytes* could ever be leased; also while nobody answers."""
        ...

    def hold(
        self,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        *,
        seconds: float | None = None,
    ) -> ServiceHold:
        """As of every keyed cache; does not wait for the other process.

        With *seconds* it is limited in time: the other process takes it back so many seconds after
        it was asked, whatever this process does, unless :meth:`ServiceHold.keep` came before.
        """
        ...

    def reserve(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> ServiceHold:
        """As ``allocate`` where nothing is waited for; does not wait for the answer, either.

        The leases are of the first of *wanted*, and as empty as those that ``allocate`` gives.
        *deadline* is the answer's.
        """
        ...

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        """As of every keyed cache; does not wait for the other process.

        What is said of ``tiers`` is what they had once it said anything.
        """
        ...

    def sweep(self, owner: str) -> int:
        """Take back all that *owner* still holds, because it is gone. How many leases."""
        ...

    def ledger(self) -> Mapping[str, int]:
        """How many leases each owner of this process holds. Empty at rest."""
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
        """Give everything back and end the connection. Calling it twice is allowed.

        Memory that somebody still looks at stays mapped until the last view of it is gone.
        """
        ...


@runtime_checkable
class SupportsListing(Protocol):
    """A service that says what is in its memory, to those who may know."""

    def in_memory(self, after: ChunkKey | None, deadline: Deadline) -> Sequence[ChunkSpec] | None:
        """Some of the chunks in memory whose keys come behind *after*, in the order of keys.

        All of them are held raw. Empty: there are no more. ``None``: nobody answers.

        Raises:
            InvalidRequest: this process may not know.
        """
        ...
