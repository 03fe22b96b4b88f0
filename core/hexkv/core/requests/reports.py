"""What a request has come to, counted once and said to its caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.retrieve import Arrived
from hexkv.core.requests.store import Kept
from hexkv.ports import CounterName, HistogramName, Reason, Retrieved, StoreReport, Telemetry


def retrieved(
    telemetry: Telemetry, prompt: Prompt, skip: int, got: Arrived, seconds: float
) -> Retrieved:
    """Count what a retrieve of *prompt*, behind its first *skip* tokens, brought."""
    unnamed = len(prompt.unnamed.ends)
    if unnamed:
        got.end(unnamed, Reason.TIMED_OUT)
    telemetry.count(CounterName.LOOKUPS, len(prompt.keys) + unnamed)
    for tier, chunks in got.by_tier.items():
        telemetry.count(CounterName.HITS, chunks, tier=tier)
    for reason, chunks in got.misses.items():
        telemetry.count(CounterName.MISSES, chunks, reason=reason)
    telemetry.observe(HistogramName.RETRIEVE, seconds)
    return Retrieved(
        tokens=prompt.length,
        hit_tokens=max(skip, prompt.ends[got.chunks - 1]) if got.chunks else skip,
        loaded_tokens=sum(got.tokens.values()),
        loaded_bytes=got.size,
        tiers=got.tokens,
        misses=got.misses,
    )


def held(
    telemetry: Telemetry, tiers: Sequence[str], reasons: Sequence[Reason], seconds: float
) -> None:
    """Count chunks that a hold brought from *tiers*, and the *reasons* why others are missing."""
    telemetry.count(CounterName.LOOKUPS, len(tiers) + len(reasons))
    for tier, chunks in Counter(tiers).items():
        telemetry.count(CounterName.HITS, chunks, tier=tier)
    for reason, chunks in Counter(reasons).items():
        telemetry.count(CounterName.MISSES, chunks, reason=reason.value)
    telemetry.observe(HistogramName.RETRIEVE, seconds)


def stored(telemetry: Telemetry, prompt: Prompt, kept: Kept, seconds: float) -> StoreReport:
    """Count what a store of *prompt* kept."""
    telemetry.count(CounterName.PRESENT, kept.present_chunks)
    telemetry.observe(HistogramName.STORE, seconds)
    if prompt.unnamed.ends:
        telemetry.count(CounterName.DROPPED, len(prompt.unnamed.ends), reason=Reason.TIMED_OUT)
    return StoreReport(
        tokens=prompt.length,
        stored_tokens=kept.stored,
        present_tokens=kept.present,
        queued_tokens=kept.queued,
        dropped_tokens=kept.dropped + prompt.unnamed_tokens,
        stored_bytes=kept.size,
        tiers=kept.tiers,
    )
