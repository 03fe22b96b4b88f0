"""Counts and records of holds, which hosts that name chunks themselves use as retrieves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

from hexkv.core.runtime import Runtime
from hexkv.ports import ChunkSpec, CounterName, HistogramName, Reason, RecordedCall, RecordedKind

Ended = Callable[[Sequence[str], Sequence[Reason | None]], None]
"""Takes the tier of each chunk of a hold, and why others are missing."""


def counting(runtime: Runtime, wanted: Sequence[ChunkSpec]) -> Ended:
    """Return a function that counts and records a hold of *wanted*, which begins now."""
    clock, telemetry, calls = runtime.clock, runtime.telemetry, runtime.calls
    start = clock.now()

    def count(tiers: Sequence[str], reasons: Sequence[Reason | None]) -> None:
        seconds = clock.now() - start
        tokens = [spec.tokens for spec in wanted]
        telemetry.count(CounterName.LOOKUPS, len(tokens))
        telemetry.count(CounterName.LOOKUP_TOKENS, sum(tokens))
        found: dict[str, int] = {}
        for tier in filter(None, dict.fromkeys(tiers)):
            found[tier] = sum(compress(tokens, map(tier.__eq__, tiers)))
            telemetry.count(CounterName.HITS, tiers.count(tier), tier=tier)
            telemetry.count(CounterName.HIT_TOKENS, found[tier], tier=tier)
        misses: dict[str, int] = {}
        for reason in filter(None, dict.fromkeys(reasons)):
            some = sum(compress(tokens, [why is reason for why in reasons]))
            misses[reason.value] = some
            telemetry.count(CounterName.MISSES, reasons.count(reason), reason=reason)
            telemetry.count(CounterName.MISSED_TOKENS, some, reason=reason)
        telemetry.observe(HistogramName.RETRIEVE, seconds)
        if calls is not None and wanted:
            keys, total, kind = [spec.key for spec in wanted], sum(tokens), RecordedKind.RETRIEVE
            calls.record(
                RecordedCall(
                    kind, start, seconds, total, keys, 0, total, found, misses, by_key=True
                )
            )

    return count
