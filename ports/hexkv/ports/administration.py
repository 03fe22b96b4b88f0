"""Administration: what operators do with a running cache, by key and while it serves.

One process at a time decides what a tier holds, so the verbs run there: in the process of the
engine, or in a node's. Others reach them through an :class:`~hexkv.ports.AdminAccess`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hexkv.ports.health import Health
from hexkv.ports.keys import ChunkKey
from hexkv.ports.maintenance import (
    NamespaceState,
    Selection,
    TierState,
    Watch,
    Why,
    WorkReport,
)
from hexkv.ports.relocation import Relocation
from hexkv.ports.steps import TraceStep


class Administration(Relocation, Protocol):
    """The verbs. Safe from any thread; none keeps a request of the cache waiting.

    A verb that cannot be done raises ``InvalidRequest`` before it changes anything; each raises
    ``EngineClosed`` once the cache is closed. Verbs that take a *watch* go on for as long as there
    are chunks, a few at a time; what a stopped one has done stays done.
    """

    def status(self) -> Health:
        """Return the state of the cache."""
        ...

    def steps(self) -> Sequence[TraceStep]:
        """Return what took time of late; see :class:`~hexkv.ports.SupportsSteps`."""
        ...

    def tiers(self) -> Sequence[TierState]:
        """Return the tiers from the fastest to the slowest, and their rules."""
        ...

    def namespaces(self) -> Sequence[NamespaceState]:
        """Return whose chunks there are. Reads one chunk of each namespace, once."""
        ...

    def lookup(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        """Return for each chunk the first tier that holds it."""
        ...

    def explain(self, keys: Sequence[ChunkKey]) -> Sequence[Mapping[str, Why]]:
        """Return for each chunk, by tier, why it would come from there, or would not."""
        ...

    def pin(self, owner: str, chosen: Selection, seconds: float | None = None) -> int:
        """Keep chunks from eviction for *owner*, up to *seconds*. How many there are."""
        ...

    def unpin(self, owner: str) -> int:
        """End the pins of *owner*, whoever that is. How many there were, over all tiers."""
        ...

    def freeze(self, frozen: bool = True) -> None:
        """While frozen, store nothing: what is cached stays as it is."""
        ...

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything queued is written. True if that came within *seconds*."""
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
        """Likewise, and delete from *source* what can be read from *target*."""
        ...

    def compress(
        self, chosen: Selection, tier: str, serde: str, watch: Watch | None = None
    ) -> WorkReport:
        """Replace chunks by what *serde* makes of them, where that is smaller.

        ``raw`` replaces encoded chunks by plain ones.
        """
        ...

    def drain(self, tier: str, target: str | None = None, watch: Watch | None = None) -> WorkReport:
        """Write nothing to *tier* any more, and copy to *target* what no other tier would keep.

        Tiers in memory do not count as others. *target* is by default the next slower tier that
        is written to, or else the next faster one. Nothing is deleted. The tier stays closed to
        writes if this is stopped.
        """
        ...

    def attach(self, tier: Mapping[str, object], position: int | None = None) -> None:
        """Add a tier, as one of ``tiers`` in a configuration says it; by default as the slowest.

        Raises:
            ConfigError, AdapterUnavailable, StoreError: it cannot be opened.
        """
        ...

    def detach(self, tier: str) -> bool:
        """Take a tier out, after what is under way there, and close it. False: not all ended.

        What its store keeps stays there; what is in memory alone is gone.
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
        """Change what is done with a tier; ``None`` leaves a rule as it is."""
        ...
