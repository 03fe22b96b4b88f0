"""Records of reads and writes: causes of misses, and chunks that cannot be read.

For the latter see :mod:`hexkv.core.tiers.stores.key_faults`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.core.tiers.index.deleting import Deleted
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.stores.answers import words
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    Change,
    ChunkKey,
    CounterName,
    Deadline,
    Failed,
    Item,
    ReadOutcome,
    Reason,
    StoreUnreachable,
    TimedOut,
)

GONE = frozenset({Reason.LOST, Reason.EVICTED, Reason.EXPIRED})
"""The reasons of chunks that their store no longer holds."""

_TOLD_ELSEWHERE = (Reason.CORRUPT, Reason.REFUSED, Reason.ABSENT)

IN_VAIN = "it was written anew, and cannot be read"


def remember_reads(
    runtime: TierRuntime,
    tier: str,
    keys: Sequence[ChunkKey],
    outcomes: Sequence[object],
    why: Sequence[Reason | None],
) -> None:
    """Note why chunks did not come from *tier*, and forget the notes of those that did."""
    well = [key for key, reason in zip(keys, why, strict=True) if reason is None]
    runtime.history.forget(well, tier)
    for key, outcome, reason in zip(keys, outcomes, why, strict=True):
        if reason in GONE:
            runtime.note([key], tier, reason, "" if reason is Reason.LOST else "by the store")
        elif reason is not None and reason not in _TOLD_ELSEWHERE:
            runtime.note([key], tier, Reason.READ_FAILED, described(outcome) or reason)


def remember_evicted(runtime: TierRuntime, tier: Tier, victims: Sequence[ChunkKey]) -> None:
    """Count, note and report the chunks that *tier* evicted."""
    if victims:
        runtime.note(victims, tier.name, Reason.EVICTED, f"by {tier.index.policy}")
        runtime.telemetry.count(CounterName.EVICTED, len(victims), tier=tier.name)
        runtime.ages.evicted(tier.name, victims)
        runtime.tell(Change.REMOVED, tier.name, victims)


def described(outcome: object) -> str:
    """Return the error of an outcome as readable text; empty if there is none."""
    match outcome:
        case Failed(error):
            return words(error)
        case TimedOut():
            return Reason.TIMED_OUT
    return ""


def set_aside(
    runtime: TierRuntime,
    tier: Tier,
    damaged: Sequence[ChunkKey],
    deadline: Deadline,
    since: Deleted,
) -> None:
    """Count damaged chunks, make them unreadable, and record the reason.

    *since*: those deleted since they were read. So a chunk that several reads found damaged leaves,
    and counts, once.
    """
    if damaged:
        tier.calls.set_aside(damaged)
        gone = tier.quarantine(damaged, deadline, since)
        runtime.telemetry.count(CounterName.CORRUPT, len(gone), tier=tier.name)
        runtime.note(damaged, tier.name, Reason.CORRUPT)
        runtime.tell(Change.REMOVED, tier.name, gone)


def withdraw(runtime: TierRuntime, tier: Tier, deadline: Deadline) -> None:
    """Withdraw the chunks that were barred just now; set aside those that are at fault alone.

    If memory holds them, the next call for their prompt writes them again.
    """
    fresh = tier.calls.faults.take_fresh()
    if not fresh:
        return
    for key, barred in fresh.items():
        tier.calls.give_up(key, barred.words)
    if alone := [key for key, barred in fresh.items() if barred.alone]:
        tier.quarantine(alone, deadline)
    if tier.rules.writes is not Writes.NONE:
        tier.backlog.add(list(fresh))
    runtime.tell(Change.REMOVED, tier.name, list(fresh))


def announce_returned(runtime: TierRuntime, tier: Tier, keys: Iterable[ChunkKey]) -> None:
    """Report to event sinks those of *keys* that were withdrawn: they were just read."""
    runtime.tell(Change.STORED, tier.name, tier.calls.faults.take_returned(keys))


def make_way(tier: Tier, keys: Sequence[ChunkKey], deadline: Deadline) -> list[ChunkKey]:
    """Set aside those of *keys* that are barred, before they are written again.

    Returns:
        those that were written again already and could not be read: do not write them now.
    """
    barred = tier.calls.faults.barred(keys)
    if not barred:
        return []
    lost = tier.calls.faults.lost(barred)
    if again := [key for key in barred if key not in lost]:
        tier.quarantine(again, deadline)
    return lost


def read_back(
    runtime: TierRuntime, tier: Tier, written: Sequence[Item], deadline: Deadline
) -> list[ChunkKey]:
    """Read those of *written* that could not be read before.

    Returns:
        those that still cannot be read. They are set aside again.
    """
    faults = tier.calls.faults
    sizes = {item.key: len(item.frame) for item in written}
    doubted = faults.doubted(list(sizes))
    if not doubted:
        return []
    outcomes = tier.calls.read(doubted, _Anywhere([sizes[key] for key in doubted]), deadline)
    bad = [key for key, outcome in zip(doubted, outcomes, strict=True) if _cannot_be_read(outcome)]
    faults.written_in_vain(bad)
    withdraw(runtime, tier, deadline)
    if bad:
        tier.quarantine(bad, deadline)
    return bad


def _cannot_be_read(outcome: ReadOutcome) -> bool:
    return isinstance(outcome, Failed) and not isinstance(outcome.error, StoreUnreachable)


class _Anywhere:
    """A sink for bytes that are not used: only their arrival counts."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        return memoryview(bytearray(size)) if size == self._sizes[index] else None

    def filled(self, index: int, upto: int) -> None:
        """See :class:`hexkv.ports.Sink`."""
