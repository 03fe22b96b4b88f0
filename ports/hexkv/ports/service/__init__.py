"""The lower half of a cache: chunks by key, on tiers of this process or of another one.

Requests are written over it (``hexkv.core.requests``). Another process, a node, owns its memory and
decides which client may use which block of it. Its leases work as in one process: a lease ends with
its release, or with the end of the process that holds it, and its memory is not reused before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.chunk_cache import ChunkLeases
from hexkv.ports.keys import ChunkKey
from hexkv.ports.operate.health import Health
from hexkv.ports.results import Cleared
from hexkv.ports.runtime.clock import Deadline
from hexkv.ports.service.defaults import FarTiers, WholeChunks
from hexkv.ports.service.holding import HoldTerms, ServiceHold, ServicePublishing
from hexkv.ports.service.reading import ServiceReads
from hexkv.ports.service.writing import ServiceWrites

__all__ = [
    "ChunkService",
    "FarTiers",
    "HoldTerms",
    "ServiceHold",
    "ServicePublishing",
    "SupportsListing",
    "WholeChunks",
]


@runtime_checkable
class ChunkService(ServiceReads, ServiceWrites, ChunkLeases, Protocol):
    """The lease half of a keyed cache, and all that requests need of it. Safe from any thread.

    While another process does not answer, chunks are missing, there is no memory to allocate,
    and nothing is published: no call raises for that, and none takes longer than its deadline.
    The connection is restored automatically.
    """

    @property
    def near(self) -> bool:
        """True if its tiers are in this process: then a question costs no round trip."""
        ...

    @property
    def pool_bytes(self) -> int:
        """Bytes of the memory; of the last one, while there is none."""
        ...

    @property
    def block_bytes(self) -> int | None:
        """Bytes of the largest block of the memory, header page included; ``None``: any."""
        ...

    def fits(self, payload_bytes: int) -> bool:
        """True if a chunk of *payload_bytes* could ever be leased. Needs no connection."""
        ...

    def assign(self, prefix: bytes, tenant: str) -> None:
        """Assign the chunks whose keys begin with *prefix*, a namespace's, to *tenant*."""
        ...

    @property
    def expiring(self) -> Collection[str]:
        """The owners of pins that this process ends in time; may be read without a lock."""
        ...

    def expire(self) -> None:
        """End pins that are past their time."""
        ...

    def on_shortage(self, reap: Callable[[], bool], first_end: Callable[[], float]) -> None:
        """Set what to call first when memory is short, and when it will next free any.

        A service in another process, which ends holds by their limits, ignores it.
        """
        ...

    def sweep(self, owner: str) -> int:
        """End *owner*, which is gone: take back its leases and pins. Return how many leases."""
        ...

    def ledger(self) -> Mapping[str, int]:
        """Return the number of leases of each owner in this process. Empty at rest."""
        ...

    def clear(
        self,
        prefixes: Collection[bytes] | None,
        tiers: Sequence[str] | None,
        deadline: Deadline,
        tails: Sequence[tuple[ChunkKey, int]] = (),
    ) -> Cleared:
        """Delete every chunk whose key begins with one of *prefixes*, or every one for ``None``.

        And *tails*, each with its tokens, from tiers that keep chunks so short.

        Raises:
            InvalidRequest: there is no such tier.
        """
        ...

    def health(self, deadline: Deadline) -> Health | None:
        """Return the state of the cache; ``None`` if another process does not answer."""
        ...

    def close(self, deadline: Deadline | None = None) -> None:
        """Release everything; finish writes queued here, up to *deadline*. May come twice.

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
