"""The keyed cache: chunks by key over all tiers, below the layers that know tokens.

Hosts that name chunks themselves (SGLang's pages, vLLM's offloaded blocks) use it directly. A
:class:`~hexkv.ports.hold.Hold` replaces a private copy: its chunks are read and verified, count
against the pool's budget, and cannot miss until it is released.

To store: :meth:`~ChunkCache.allocate`, fill each lease's payload, :meth:`~ChunkCache.publish`,
release. To load: :meth:`~ChunkCache.hold`, wait, copy out of each lease's payload, release. For
KV on a device, :meth:`~ChunkCache.save` and :meth:`~ChunkCache.load` do all of that, a few chunks
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.device import DeviceKV
from hexkv.ports.hold import Hold, Publishing
from hexkv.ports.keys import ChunkKey
from hexkv.ports.lease import Lease
from hexkv.ports.results import Retrieved, StoreReport
from hexkv.ports.runtime.clock import Deadline

SHARED_OWNER = "shared "
"""Prefix of the owner of a pin that belongs to no client: any client may end it by its name."""


class ChunkLeases(Protocol):
    """The part of a keyed cache that copies no KV itself: its callers copy out of and into leases.

    Safe from any thread; no call raises an error of a tier. *owner* is the name under which
    leases and pins are listed until they end. Every call after the cache was closed raises
    ``EngineClosed``.
    """

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        """Return the first tier that each chunk would be read from; a hint, loads nothing."""
        ...

    def hold(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> Hold:
        """Begin to read chunks, each from the fastest tier that delivers it.

        Waits for memory only while it holds none, up to *deadline*, which also limits the reads.
        Chunks for which there is no memory are missing with the reason ``REFUSED``.

        Raises:
            InvalidRequest: a chunk is larger than the pool's blocks.
        """
        ...

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        """Return empty leases for the first of *wanted*, as many as there is memory for.

        Waits for the first one up to *deadline*. The caller releases them.

        Raises:
            InvalidRequest: a chunk is larger than the pool's blocks.
        """
        ...

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        """Write chunks to every tier that takes new ones. The leases stay the caller's.

        Args:
            leases: filled, each with its :class:`ChunkSpec`; neighbours in one prompt.
            after: the chunk before the first of them, if there is one.
            deadline: of the writes.

        Raises:
            InvalidRequest: a lease has no spec.
        """
        ...

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        """Delete chunks from every tier. Return the number of distinct ones known to be deleted."""
        ...

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        """Pin chunks until :meth:`unpin`, or for *seconds*. Return how many are pinned.

        A service ends a client's pins with the client, unless *owner* begins with
        ``SHARED_OWNER``: such a pin lasts its *seconds*, and any client may end it.
        """
        ...

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. Return how many there were, over all tiers."""
        ...

    def flush(self, deadline: Deadline) -> bool:
        """Wait until nothing is left to write. False if *deadline* passed first."""
        ...


class ChunkCache(ChunkLeases, Protocol):
    """Chunks by key, and the copies between them and a device."""

    def load(self, wanted: Sequence[ChunkSpec], device: DeviceKV, deadline: Deadline) -> Retrieved:
        """Load chunks into *device*, in order, until one does not arrive.

        Args:
            wanted: the chunks; each covers the next of the window's positions.
            device: a window on as many positions as they have tokens.
            deadline: of the whole.

        Raises:
            InvalidRequest: the window does not fit the chunks.
        """
        ...

    def save(
        self,
        wanted: Sequence[ChunkSpec],
        device: DeviceKV,
        deadline: Deadline,
        *,
        wait: bool = True,
    ) -> StoreReport:
        """Copy from *device* the chunks that no tier holds, and publish them.

        Args:
            wanted: the chunks; each covers the next of the window's positions.
            device: a window on as many positions as they have tokens.
            deadline: of the whole.
            wait: False queues the writes of slower tiers and does not wait for them.

        Raises:
            InvalidRequest: the window does not fit the chunks.
        """
        ...
