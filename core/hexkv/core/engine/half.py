"""The chunk half, as an engine has it below itself: tiers of this process, or a service.

An engine adds what callers meet: the door, names, checks, deadlines, and what is counted. All that
moves chunks is here, once over tiers (:mod:`hexkv.core.engine.tiered`) and once over the memory of
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
from hexkv.core.steps import Laps, StepRing
from hexkv.ports import (
    Announcing,
    CallSink,
    ChunkLeases,
    Cleared,
    Clock,
    Deadline,
    DeviceKV,
    Executor,
    Health,
    LayeredRead,
    LayeredWrite,
    Reason,
    Retrieved,
    SpanSink,
    StoreReport,
    Telemetry,
)


class Base(Protocol):
    """Time, how to wait, and who is told."""

    @property
    def clock(self) -> Clock: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def steps(self) -> StepRing: ...
    @property
    def calls(self) -> CallSink | None: ...
    @property
    def spans(self) -> SpanSink | None: ...


class Waiting(Protocol):
    """Prefetches that nobody has picked up."""

    @property
    def waiting(self) -> Collection[str]:
        """The ids of their lookups; to be read without a lock."""
        ...

    def begin(self, lookup_id: str, name: Callable[[], Prompt], read: Deadline) -> int | None:
        """See :meth:`hexkv.ports.PrefixCache.prefetch`; only the first time is it named."""
        ...

    def cancel(self, lookup_id: str) -> bool:
        """Give everything back. Whether there was such a prefetch."""
        ...

    def reap(self) -> bool:
        """Cancel what is past its time."""
        ...

    def close(self) -> None:
        """Cancel everything."""
        ...


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Located:
    """The longest prefix of a prompt that was found."""

    whole: Prompt
    """Begins with the chunks that were found: the prompt, or as far as the tail that was found."""

    tiers: Sequence[str]
    """The name of the tier of each chunk that was found."""

    missing: Reason | None = None
    """Why the chunk behind it is not found, where that is known."""

    @property
    def prompt(self) -> Prompt:
        """The chunks that were found."""
        return self.whole.part(0, len(self.tiers))

    @property
    def tokens(self) -> int:
        """Where the prefix ends."""
        return self.whole.ends[len(self.tiers) - 1] if self.tiers else 0

    def by_tier(self) -> dict[str, int]:
        """Tokens of the prefix on each tier."""
        names, starts, ends = self.tiers, self.whole.starts, self.whole.ends
        if names and names.count(names[0]) == len(names):  # mostly all are on one
            return {names[0]: ends[len(names) - 1] - starts[0]}
        tokens: dict[str, int] = {}
        start = 0
        for name, run in groupby(names):
            end = start + len(list(run))
            tokens[name] = tokens.get(name, 0) + ends[end - 1] - starts[start]
            start = end
        return tokens


class LayersIn(LayeredRead, Protocol):
    """A retrieve by layers, from its beginning to its end."""

    def begin(self) -> None:
        """Find the chunks and begin to read. Once, before anything else."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class LayersOut(LayeredWrite, Protocol):
    """A store by layers, likewise."""

    def begin(self) -> None:
        """Find what is missing, and hold memory for it. Once, before anything else."""
        ...

    def close(self) -> None:
        """Let go of everything; copies that have begun keep their memory to their end."""
        ...


class ChunkHalf(ChunkLeases, Protocol):
    """Chunks by key, and prompts that were named. Safe from any thread; knows no engine.

    What each call of an engine leases and pins is listed under the *owner* that it has. The
    errors are :class:`~hexkv.ports.InvalidRequest`, where a device says so, and nothing else.
    """

    @property
    def runtime(self) -> Base: ...
    @property
    def copier(self) -> Copier: ...
    @property
    def prefetches(self) -> Waiting: ...

    @property
    def announcing(self) -> Announcing | None:
        """Where chunks under way are announced, if others can be told."""
        ...

    def fits(self, payload_bytes: int) -> bool:
        """True if a chunk of *payload_bytes* could ever be leased."""
        ...

    def worth_loading(self, tier: str, saved: float) -> bool:
        """Whether KV from *tier* comes sooner than the share *saved* of it is computed.

        True where that is not known.
        """
        ...

    def assign(self, prefix: bytes, tenant: str) -> None:
        """Chunks whose keys begin with *prefix*, a namespace's, are *tenant*'s."""
        ...

    @property
    def prefixes(self) -> Collection[bytes]:
        """How the keys begin of every namespace that was assigned."""
        ...

    def locate(self, prompt: Prompt, deadline: Deadline, *, served: bool) -> Located:
        """What there is of *prompt*; if *served*, on tiers that serve requests."""
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
        """Copy chunks of *prompt* into *device*, in order, until one does not arrive.

        What was prefetched under *lookup_id* is taken, used or not.
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
        """Copy those out of *device* that no tier holds, and write them."""
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
        """Likewise layer by layer, behind the first *skip* tokens; *report* makes the result."""
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
        """Likewise layer by layer."""
        ...

    def forget_prompt(
        self, prompt: Prompt, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        """Delete the chunks of *prompt* from *tiers*, by default all, and tails of any of them.

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
        """The state of memory and tiers."""
        ...

    @property
    def expiring(self) -> Collection[str]:
        """The owners of pins that end with time; to be read without a lock."""
        ...

    def expire(self) -> None:
        """End pins that are past their time."""
        ...

    def end(self, owner: str) -> None:
        """A call is over: take back what it still holds."""
        ...

    def close(self, deadline: Deadline) -> Mapping[str, int]:
        """Write what is queued here and end everything; what is still leased, by owner."""
        ...
