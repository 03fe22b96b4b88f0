"""Administration: the operations on a running cache, by key and while it serves.

One process at a time decides the content of a tier, so the verbs run there: in the process of the
engine, or in a node's. Other processes reach them through an :class:`~hexkv.ports.AdminAccess`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hexkv.ports.keys import ChunkKey
from hexkv.ports.operate.health import Health
from hexkv.ports.operate.maintenance import (
    NamespaceState,
    Selection,
    TierState,
    Watch,
    Why,
    WorkReport,
)
from hexkv.ports.operate.relocation import Relocation
from hexkv.ports.runtime.steps import TraceStep


class Administration(Relocation, Protocol):
    """The verbs. Safe from any thread; none makes a request of the cache wait.

    A verb that cannot be done raises ``InvalidRequest`` before it changes anything; each raises
    ``EngineClosed`` once the cache is closed. Verbs that take a *watch* process all chunks, a few
    at a time; the changes of a stopped verb are kept. A verb ends by the cache's deadline for
    stores, which chunks that are done renew; the rest has failed.
    """

    def status(self) -> Health:
        """Return the state of the cache."""
        ...

    def steps(self) -> Sequence[TraceStep]:
        """Return the last steps, a few thousand at most, in the order in which they ended.

        The parts of a call come before the whole.
        """
        ...

    def tiers(self) -> Sequence[TierState]:
        """Return the tiers with their rules, from the fastest to the slowest."""
        ...

    def namespaces(self) -> Sequence[NamespaceState]:
        """Return the namespaces that have chunks. Reads one chunk of each namespace, once."""
        ...

    def lookup(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        """Return for each chunk the first tier that holds it."""
        ...

    def explain(self, keys: Sequence[ChunkKey]) -> Sequence[Mapping[str, Why]]:
        """Return for each chunk, by tier, why it would be read from that tier, or would not."""
        ...

    def pin(self, owner: str, chosen: Selection, seconds: float | None = None) -> int:
        """Pin chunks for *owner*, for *seconds* at most. Return how many are pinned."""
        ...

    def unpin(self, owner: str) -> int:
        """End the pins of any *owner*. Return how many there were, over all tiers."""
        ...

    def freeze(self, frozen: bool = True) -> None:
        """Store nothing while frozen: the cached chunks stay unchanged."""
        ...

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all queued writes are done. True if they ended within *seconds*."""
        ...

    def clear(
        self, chosen: Selection, tiers: Sequence[str] | None = None, watch: Watch | None = None
    ) -> WorkReport:
        """Delete chunks, pinned ones included, from *tiers*, by default from all."""
        ...

    def copy(
        self, chosen: Selection, source: str, target: str, watch: Watch | None = None
    ) -> WorkReport:
        """Copy chunks of *source* to *target*."""
        ...

    def move(
        self, chosen: Selection, source: str, target: str, watch: Watch | None = None
    ) -> WorkReport:
        """Copy chunks as :meth:`copy`, and delete from *source* those readable from *target*."""
        ...

    def compress(
        self, chosen: Selection, tier: str, serde: str, watch: Watch | None = None
    ) -> WorkReport:
        """Encode each chunk by *serde*, and replace it where that is smaller.

        ``raw`` replaces encoded chunks by plain ones.
        """
        ...

    def drain(self, tier: str, target: str | None = None, watch: Watch | None = None) -> WorkReport:
        """Stop writes to *tier*, and copy to *target* the chunks that no other tier would keep.

        Tiers in memory do not count as others. *target* is by default the next slower tier that
        is written to, or else the next faster one. Nothing is deleted. The tier stays closed to
        writes if the verb is stopped.
        """
        ...

    def attach(self, tier: Mapping[str, object], position: int | None = None) -> None:
        """Add a tier, described as an item of ``tiers`` in a configuration; by default the slowest.

        Raises:
            ConfigError, AdapterUnavailable, StoreError: it cannot be opened.
        """
        ...

    def detach(self, tier: str) -> bool:
        """Remove a tier after its running work, and close it. False if some work did not end.

        Chunks that its store keeps stay there; chunks in memory alone are lost.
        """
        ...

    def rules(
        self,
        tier: str,
        *,
        reads: bool | None = None,
        writes: str | None = None,
        promotes: bool | None = None,
    ) -> None:
        """Change the rules of a tier; ``None`` leaves a rule as it is."""
        ...

    def adjust(self, settings: Mapping[str, object]) -> None:
        """Change settings of the running cache, all of them or none.

        *settings* are part of a configuration, in which the keys of ``tiers`` and ``tenants`` are
        names: ``{"tiers": {"disk": {"budget": "20GiB"}}}``.

        Raises:
            ConfigError: one is unknown, invalid, or needs a restart.
            StoreError: a store cannot follow.
        """
        ...
