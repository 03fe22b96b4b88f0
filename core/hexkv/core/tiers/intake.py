"""The one way from a store into memory: whole frames, verified, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from hexkv.core.tiers.evicting import evict_soon
from hexkv.core.tiers.remembering import GONE, remember_reads, set_aside
from hexkv.core.tiers.runtime import Runtime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    Change,
    ChunkKey,
    Corrupt,
    CounterName,
    Deadline,
    Failed,
    HistogramName,
    Hit,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    StoreUnreachable,
    TimedOut,
)


class Frames(Sink, Protocol):
    """Where a store puts whole frames."""

    wrong: set[int]
    """Chunks whose frames cannot be any of ours, by the size that the store gave them."""


class Read(NamedTuple):
    """What became of chunks that were read."""

    why: list[Reason | None]
    """Why each is not to be used; ``None`` for those that are whole."""

    well: bool
    """Whether the store was."""


class _Some:
    """A sink for some of the chunks of another one."""

    def __init__(self, sink: Sink, which: Sequence[int]) -> None:
        self._sink = sink
        self._which = which

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        return self._sink.room(self._which[index], size)


def read_frames(
    runtime: Runtime,
    tier: Tier,
    keys: Sequence[ChunkKey],
    sink: Frames,
    judge: Callable[[int, int], Reason | None],
    deadline: Deadline,
) -> Read:
    """Read whole frames, once more where that may help, and tell everybody what became of them.

    For workers of the tier's lane. What is damaged is set aside, and what the store lost is
    forgotten. The caller tells the tier's link how many tokens came.

    Args:
        runtime: of the tier.
        tier: which does I/O.
        keys: the chunks.
        sink: takes their frames.
        judge: verifies the frame of a chunk that arrived with so many bytes. Why it is not to
            be used, or ``None``.
        deadline: for the store.
    """
    start = runtime.clock.now()
    tier.link.began(start)
    outcomes = tier.calls.read(keys, sink, deadline)
    for _ in range(tier.rules.retries):
        again = [i for i, outcome in enumerate(outcomes) if may_retry(outcome)]
        if not again or deadline.expired:
            break
        runtime.telemetry.count(CounterName.RETRIES, len(again), tier=tier.name)
        answers = tier.calls.read([keys[i] for i in again], _Some(sink, again), deadline)
        for i, outcome in zip(again, answers, strict=True):
            outcomes[i] = outcome
    sizes = [outcome.size if isinstance(outcome, Hit) else 0 for outcome in outcomes]
    tier.link.arrived(runtime.clock.now(), sum(sizes))
    why = [
        judge(i, outcome.size) if isinstance(outcome, Hit) else _why(outcome, i in sink.wrong)
        for i, outcome in enumerate(outcomes)
    ]
    arrived = [(key, size) for key, size, w in zip(keys, sizes, why, strict=True) if w is None]
    evict_soon(runtime, tier, tier.adopt_foreign(arrived, runtime.clock.wall()))
    runtime.telemetry.observe(HistogramName.READ, runtime.clock.now() - start, tier=tier.name)
    read = sum(size for _, size in arrived)
    runtime.telemetry.count(CounterName.READ_BYTES, read, tier=tier.name)
    damaged = [key for key, w in zip(keys, why, strict=True) if w is Reason.CORRUPT]
    set_aside(runtime, tier, damaged, deadline)
    stale = [key for key, w in zip(keys, why, strict=True) if w in GONE and tier.index.decides]
    gone = tier.let_go(stale)
    # At once: a host that meets the miss may store the prompt anew before any worker is free.
    tier.delete(gone, deadline)
    runtime.tell(Change.REMOVED, tier.name, gone)
    remember_reads(runtime, tier.name, keys, outcomes, why)
    return Read(why, not all(isinstance(outcome, Failed | TimedOut) for outcome in outcomes))


def _why(outcome: ReadOutcome, wrong: bool) -> Reason:
    """Why a chunk did not arrive, which was of a *wrong* size where it was refused."""
    match outcome:
        case Miss(reason):
            return Reason.CORRUPT if reason is Reason.REFUSED and wrong else reason
        case Corrupt():
            return Reason.CORRUPT
        case TimedOut():
            return Reason.TIMED_OUT
        case _:  # the tier lets nothing else pass; to fall through would mean a hit
            return Reason.FAILED


def may_retry(outcome: object) -> bool:
    """Whether trying once more may help."""
    return isinstance(outcome, Failed) and isinstance(outcome.error, StoreUnreachable)
