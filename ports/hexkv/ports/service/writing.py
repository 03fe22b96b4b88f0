"""The writing side of a service: chunks stored already, memory for the rest, and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.keys import ChunkKey
from hexkv.ports.lease import Lease
from hexkv.ports.outcomes import Reason
from hexkv.ports.runtime.clock import Deadline
from hexkv.ports.service.holding import ServiceHold, ServicePublishing


class ServiceWrites(Protocol):
    """The calls of a :class:`~hexkv.ports.ChunkService` that store chunks."""

    def stored(
        self,
        keys: Sequence[ChunkKey],
        after: ChunkKey | None,
        owner: str,
        deadline: Deadline,
        *,
        below: int = 0,
        asks: bool = True,
    ) -> Sequence[bool]:
        """Return True for each chunk that need not be stored, and note its use.

        Args:
            keys: neighbours in one prompt, which is about to be stored.
            after: the chunk before the first of them.
            owner: of leases that it takes for this time.
            deadline: of the answer.
            below: as for ``match``.
            asks: False uses indexes only, and queries no store.
        """
        ...

    def reserve(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> ServiceHold:
        """Allocate as ``allocate`` without a wait for memory; does not wait for the answer, either.

        The leases are for the first of *wanted*, and empty as those of ``allocate``.
        *deadline* is that of the answer.
        """
        ...

    def publish(
        self,
        leases: Sequence[Lease],
        after: ChunkKey | None,
        deadline: Deadline,
        *,
        transfer: bool = False,
        keep: str | None = None,
        wait: bool = True,
    ) -> ServicePublishing:
        """Publish chunks as every keyed cache does; does not wait for another process.

        Args:
            leases: as for :meth:`ChunkLeases.publish`.
            after: the chunk before the first of them.
            deadline: of the writes.
            transfer: True: *leases*, as ``allocate`` made them, are released or belong to the
                cache after this.
            keep: an owner until whose end the chunks stay, also if room is needed for later ones.
            wait: False drops chunks for which a queue has no room now.
        """
        ...

    @property
    def write_step(self) -> int | None:
        """The most chunks to publish together, so that writing begins soon; ``None``: any."""
        ...

    def drop(self, wanted: Sequence[ChunkSpec], reason: Reason) -> bool:
        """Count chunks that were not published. False: another process counts none."""
        ...
