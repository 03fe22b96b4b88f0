"""The keyed cache: chunks by key over all tiers, below everything that knows tokens.

Hosts that name chunks themselves (SGLang's pages, vLLM's offloaded blocks) use it directly. A
:class:`~hexkv.ports.hold.Hold` takes the place of a copy put aside: what it holds was read and
verified, counts against the pool's budget, and cannot miss until it is released.

Store: :meth:`~ChunkCache.allocate`, fill each lease's payload, :meth:`~ChunkCache.publish`,
release. Load: :meth:`~ChunkCache.hold`, wait, copy out of each lease's payload, release. Where
the other side is a device, :meth:`~ChunkCache.save` and :meth:`~ChunkCache.load` do all of that, a
few chunks at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.clock import Deadline
from hexkv.ports.device import DeviceKV
from hexkv.ports.hold import Hold, Publishing
from hexkv.ports.keys import ChunkKey
from hexkv.ports.memory import Lease
from hexkv.ports.results import Retrieved, StoreReport

SHARED_OWNER = "shared "
"""How the owner of a pin begins that is no client's own: whoever knows its name may end it."""


class ChunkLeases(Protocol):
    """The part of a keyed cache that moves no KV itself: its callers copy, out of leases or in.

    Safe from any thread; no call raises an error of a tier. *owner* is the name under which
    leases and pins are listed until they end. Every call after the cache was closed raises
    ``EngineClosed``.
    """

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        """The name of the first tier that each chunk would be read from; a hint, loads nothing."""
        ...

    def hold(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> Hold:
        """Begin to read chunks, each from the fastest tier that brings it.

        Waits for memory only while it holds none, up to *deadline*, which is that of the reads,
        too. Chunks for which there is no memory are missing for the reason ``REFUSED``.

        Raises:
            InvalidRequest: a chunk is larger than the pool's blocks.
        """
        ...

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        """Empty leases for the first of *wanted*, as many as there is memory for.

        The first one is waited for up to *deadline*. The caller releases them.

        Raises:
            InvalidRequest: a chunk is larger than the pool's blocks.
        """
        ...

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        """Put chunks on every tier that takes new ones. The leases stay the caller's.

        Args:
            leases: filled, each with its :class:`ChunkSpec`; neighbours in one prompt.
            after: the chunk before the first of them, where there is one.
            deadline: of the writes.

        Raises:
            InvalidRequest: a lease does not say what it holds.
        """
        ...

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        """Delete chunks from every tier. The number of distinct ones known to be deleted."""
        ...

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        """Keep chunks from eviction until :meth:`unpin`, or for *seconds*. How many there are.

        A service ends what a client has pinned with the client, unless *owner* begins with
        ``SHARED_OWNER``: that lasts its *seconds*, and may be ended by any client.
        """
        ...

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. How many there were, over all tiers."""
        ...

    def flush(self, deadline: Deadline) -> bool:
        """Wait until nothing is left to write. False if *deadline* passed first."""
        ...


class ChunkCache(ChunkLeases, Protocol):
    """Chunks by key, and the copies between them and a device."""

    def load(self, wanted: Sequence[ChunkSpec], device: DeviceKV, deadline: Deadline) -> Retrieved:
        """Copy chunks into *device*, in order, until one does not arrive.

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
        """Copy the chunks that no tier holds out of *device*, and publish them.

        Args:
            wanted: the chunks; each covers the next of the window's positions.
            device: a window on as many positions as they have tokens.
            deadline: of the whole.
            wait: False queues the writes of slower tiers and does not wait for them.

        Raises:
            InvalidRequest: the window does not fit the chunks.
        """
        ...
