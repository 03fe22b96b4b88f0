"""The chunk half below an engine: tiers of this process, or a service.

An engine adds the parts that callers see: the door, keys, checks, deadlines and metrics. A chunk
half moves the chunks, either over tiers (:mod:`hexkv.core.engine.tiered`) or over the memory of
another process (:mod:`hexkv.core.engine.leased`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.requests.layers.limits import TimeBudget
from hexkv.core.requests.retrieve import Arrived
from hexkv.core.requests.store import Kept
from hexkv.core.runtime import Runtime
from hexkv.core.steps import Laps
from hexkv.ports import (
    Announcing,
    ChunkLeases,
    Cleared,
    Deadline,
    DeviceKV,
    Health,
    LayeredRead,
    LayeredWrite,
    Reason,
    Retrieved,
    StoreReport,
)


class Waiting(Protocol):
    """Prefetches that no retrieve has taken yet."""

    @property
    def waiting(self) -> Collection[str]:
        """The ids of their lookups; may be read without a lock."""
        ...

    def begin(self, lookup_id: str, name: Callable[[], Prompt], read: Deadline) -> int | None:
        """See :meth:`hexkv.ports.PrefixCache.prefetch`; only an id's first call runs *name*."""
        ...

    def cancel(self, lookup_id: str) -> bool:
        """Release everything. True if there was such a prefetch."""
        ...

    def reap(self) -> bool:
        """Cancel expired prefetches. True if there were any."""
        ...

    def close(self) -> None:
        """Cancel everything."""
        ...


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Located:
    """The longest prefix of a prompt that was found."""

    whole: Prompt
    """Begins with the chunks found: the prompt, or the prompt cut at the tail that was found."""

    tiers: Sequence[str]
    """The name of the tier of each chunk that was found."""

    missing: Reason | None = None
    """Why the chunk behind it is not found; ``None`` if unknown."""

    @property
    def prompt(self) -> Prompt:
        """The chunks that were found."""
        return self.whole.part(0, len(self.tiers))

    @property
    def tokens(self) -> int:
        """The end of the prefix, in tokens of the prompt."""
        return self.whole.ends[len(self.tiers) - 1] if self.tiers else 0

    def by_tier(self) -> dict[str, int]:
        """Tokens of the prefix on each tier."""
        names, starts, ends = self.tiers, self.whole.starts, self.whole.ends
        if names and names.count(names[0]) == len(names):  # usually all are on one
            return {names[0]: ends[len(names) - 1] - starts[0]}
        tokens: dict[str, int] = {}
        start = 0
        for name, run in groupby(names):
            end = start + len(list(run))
            tokens[name] = tokens.get(name, 0) + ends[end - 1] - starts[start]
            start = end
        return tokens


class LayersIn(LayeredRead, Protocol):
    """A layered retrieve, from its beginning to its end."""

    def begin(self) -> None:
        """Find the chunks and begin to read. Once, before anything else."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class LayersOut(LayeredWrite, Protocol):
    """A layered store, from its beginning to its end."""

    def begin(self) -> None:
        """Find the missing chunks, and hold memory for them. Once, before anything else."""
        ...

    def close(self) -> None:
        """Release everything; copies that have begun keep their memory until they end."""
        ...


class ChunkHalf(ChunkLeases, Protocol):
    """Chunks by key, and prompts with keys. Safe from any thread; independent of engines.

    The leases and pins of each call of an engine are listed under its *owner*. The only error is
    :class:`~hexkv.ports.InvalidRequest`, if a device raises it.
    """

    @property
    def runtime(self) -> Runtime: ...
    @property
    def copier(self) -> Copier: ...
    @property
    def prefetches(self) -> Waiting: ...

    @property
    def announcing(self) -> Announcing | None:
        """Announcements of chunks under way; ``None`` if there are no other clients."""
        ...

    def fits(self, payload_bytes: int) -> bool:
        """True if a chunk of *payload_bytes* could ever be leased."""
        ...

    def worth_loading(self, tier: str, saved: float) -> bool:
        """True if loading KV from *tier* is faster than computing the share *saved* of it.

        Also True if that is unknown.
        """
        ...

    def assign(self, prefix: bytes, tenant: str) -> None:
        """Assign the chunks whose keys begin with *prefix*, a namespace's, to *tenant*."""
        ...

    @property
    def prefixes(self) -> Collection[bytes]:
        """The key prefixes of all assigned namespaces."""
        ...

    def locate(self, prompt: Prompt, deadline: Deadline, *, served: bool) -> Located:
        """Return the longest prefix of *prompt*; if *served*, on tiers that serve requests."""
        ...

    def load(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        deadline: Deadline,
        laps: Laps,
        lookup_id: str | None = None,
    ) -> Arrived:
        """Load chunks of *prompt* into *device*, in order, until one does not arrive.

        The prefetch under *lookup_id* is consumed, used or not.
        """
        ...

    def save(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        deadline: Deadline,
        laps: Laps,
        *,
        wait: bool,
    ) -> Kept:
        """Copy from *device* the chunks of *prompt* that no tier holds, and write them."""
        ...

    def load_layers(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        patience: TimeBudget,
        report: Callable[[Arrived], Retrieved],
        *,
        skip: int,
        lookup_id: str | None,
    ) -> LayersIn:
        """Load layer by layer, behind the first *skip* tokens; *report* makes the result."""
        ...

    def save_layers(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        patience: TimeBudget,
        report: Callable[[Kept], StoreReport],
        *,
        wait: bool,
    ) -> LayersOut:
        """Save layer by layer; *report* makes the result."""
        ...

    def forget_prompt(
        self, prompt: Prompt, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        """Delete the chunks of *prompt*, and tails in any of them, from *tiers*, by default all.

        Raises:
            InvalidRequest: there is no such tier.
        """
        ...

    def clear(
        self, prefixes: Collection[bytes] | None, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        """Delete every chunk whose key begins with one of *prefixes*, or every one for ``None``.

        Raises:
            InvalidRequest: there is no such tier.
        """
        ...

    def health(self, deadline: Deadline) -> Health:
        """Return the state of memory and tiers."""
        ...

    @property
    def expiring(self) -> Collection[str]:
        """The owners of pins with an end in time; may be read without a lock."""
        ...

    def expire(self) -> None:
        """End pins that are past their time."""
        ...

    def end(self, owner: str) -> None:
        """End a call: take back everything that it still holds."""
        ...

    def close(self, deadline: Deadline) -> Mapping[str, int]:
        """Finish writes queued here and close everything. Return the leases left, by owner."""
        ...
