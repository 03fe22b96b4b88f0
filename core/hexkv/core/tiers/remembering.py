"""Record the outcomes of reads and writes in the history, as causes and in words."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.stores.answers import words
from hexkv.core.tiers.tier import Tier
from hexkv.ports import Change, ChunkKey, CounterName, Deadline, Failed, Reason, TimedOut

GONE = frozenset({Reason.LOST, Reason.EVICTED, Reason.EXPIRED})
"""The reasons of chunks that their store no longer holds."""

_TOLD_ELSEWHERE = (Reason.CORRUPT, Reason.REFUSED, Reason.ABSENT)


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
    runtime: TierRuntime, tier: Tier, damaged: Sequence[ChunkKey], deadline: Deadline
) -> None:
    """Count damaged chunks, make them unreadable, and record the reason."""
    if damaged:
        tier.calls.set_aside(damaged)
        runtime.telemetry.count(CounterName.CORRUPT, len(damaged), tier=tier.name)
        tier.quarantine(damaged, deadline)
        runtime.note(damaged, tier.name, Reason.CORRUPT)
        runtime.tell(Change.REMOVED, tier.name, damaged)
