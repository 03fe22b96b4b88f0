"""Counts and records of holds, which hosts that name chunks themselves use as retrieves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

from hexkv.core.runtime import Runtime
from hexkv.ports import (
    ChunkSpec,
    CounterName,
    HistogramName,
    Reason,
    RecordedCall,
    RecordedKind,
    Telemetry,
)

Ended = Callable[[Sequence[str], Sequence[Reason | None]], None]
"""Takes the tier of each chunk of a hold, and why others are missing."""


def held(
    wanted: Sequence[ChunkSpec],
    tiers: Sequence[str],
    reasons: Sequence[Reason | None],
    began: float,
    seconds: float,
) -> RecordedCall:
    """Return the record of a hold of *wanted*, as a retrieve by key, from *tiers* and *reasons*."""
    found: dict[str, int] = {}
    misses: dict[str, int] = {}
    for spec, tier, reason in zip(wanted, tiers, reasons, strict=True):
        if tier:
            found[tier] = found.get(tier, 0) + spec.tokens
        if reason is not None:
            misses[reason.value] = misses.get(reason.value, 0) + spec.tokens
    tokens = sum(spec.tokens for spec in wanted)
    keys = [spec.key for spec in wanted]
    retrieve = RecordedKind.RETRIEVE
    return RecordedCall(
        retrieve, began, seconds, tokens, keys, 0, tokens, found, misses, by_key=True
    )


def count_held(
    telemetry: Telemetry,
    wanted: Sequence[ChunkSpec],
    tiers: Sequence[str],
    reasons: Sequence[Reason | None],
    seconds: float,
) -> None:
    """Count the hits by tier and the misses by reason of a hold of *wanted*."""
    tokens = [spec.tokens for spec in wanted]
    telemetry.count(CounterName.LOOKUPS, len(tokens))
    telemetry.count(CounterName.LOOKUP_TOKENS, sum(tokens))
    for tier in set(tiers):
        if not tier:
            continue
        some = sum(compress(tokens, map(tier.__eq__, tiers)))
        telemetry.count(CounterName.HITS, tiers.count(tier), tier=tier)
        telemetry.count(CounterName.HIT_TOKENS, some, tier=tier)
    for reason in set(reasons):
        if reason is None:
            continue
        some = sum(compress(tokens, [found is reason for found in reasons]))
        telemetry.count(CounterName.MISSES, reasons.count(reason), reason=reason)
        telemetry.count(CounterName.MISSED_TOKENS, some, reason=reason)
    telemetry.observe(HistogramName.RETRIEVE, seconds)


def counting(runtime: Runtime, wanted: Sequence[ChunkSpec]) -> Ended:
    """Return a function that counts and records a hold of *wanted*, which begins now."""
    clock, telemetry, calls = runtime.clock, runtime.telemetry, runtime.calls
    start = clock.now()

    def count(tiers: Sequence[str], reasons: Sequence[Reason | None]) -> None:
        seconds = clock.now() - start
        count_held(telemetry, wanted, tiers, reasons, seconds)
        if calls is not None and wanted:
            calls.record(held(wanted, tiers, reasons, start, seconds))

    return count
