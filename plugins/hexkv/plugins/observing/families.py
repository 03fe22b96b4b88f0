"""The metrics that hexkv exports: names, labels, and the series that exist from the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from hexkv.ports import CounterName, HistogramName, Reason

BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the classes of durations, in seconds; one more is open."""

AGE_BUCKETS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0)
"""Bounds for ages of chunks, in seconds: a second to a week."""

KL_BUCKETS = (1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
"""Bounds for the divergence of blended expectations from full ones, in nats."""

_AGES = frozenset({HistogramName.EVICTED_AGE, HistogramName.REUSE_GAP})

HELP: Mapping[CounterName | HistogramName, str] = {
    CounterName.LOOKUPS: "Chunks that retrieves asked for.",
    CounterName.LOOKUP_TOKENS: "Tokens in the chunks that retrieves asked for.",
    CounterName.HITS: "Chunks that retrieves loaded, by tier.",
    CounterName.HIT_TOKENS: "Tokens that retrieves loaded, by tier.",
    CounterName.MISSES: "Chunks that retrieves did not load, by reason.",
    CounterName.MISSED_TOKENS: "Tokens that retrieves did not load, by reason.",
    CounterName.STORED: "Chunks written, by tier.",
    CounterName.STORED_TOKENS: "Tokens in the chunks written, by tier.",
    CounterName.PRESENT: "Chunks that stores found there already.",
    CounterName.PRESENT_TOKENS: "Tokens that stores found there already.",
    CounterName.DROPPED: "Chunks that a tier did not take, by reason.",
    CounterName.EVICTED: "Chunks that gave way to others.",
    CounterName.CORRUPT: "Chunks that were not what had been put there.",
    CounterName.RETRIES: "Chunks that a store was asked for, or given, once more.",
    CounterName.BREAKER_OPENED: "Times that a lane of a tier was switched off.",
    CounterName.READ_BYTES: "Bytes of whole frames that came from a tier.",
    CounterName.WASTED_BYTES: "Bytes of frames that were read whole and that no request used.",
    CounterName.WRITTEN_BYTES: "Bytes of frames that a tier took.",
    CounterName.LENT_BYTES: "Bytes of frames that were sent to peers.",
    CounterName.POOL_RECLAIMS: "Times that the pool was full and something gave a block up.",
    CounterName.BLEND_REQUESTS: "Requests that might have been blended, by outcome.",
    CounterName.BLEND_TOKENS: "Tokens of requests that might have been blended, by kind.",
    CounterName.BLEND_SEGMENTS: "Chunks of segments that were to be loaded, by result.",
    HistogramName.READ: "Durations of reads from a tier, with verification.",
    HistogramName.WRITE: "Durations of writes to a tier.",
    HistogramName.RETRIEVE: "Durations of retrieves.",
    HistogramName.STORE: "Durations of stores.",
    HistogramName.LOAD_WAIT: "Time that retrieves waited for chunks to come from their tiers.",
    HistogramName.EVICTED_AGE: "Time since the last use of evicted chunks, of a sample.",
    HistogramName.REUSE_GAP: "Time between two uses of a chunk on a tier, of a sample.",
    HistogramName.BLEND_SELECT: "Time to choose the tokens of a blended request to compute again.",
    HistogramName.BLEND_ROTATE: "Time to rotate the keys of a blended request's segments.",
    HistogramName.BLEND_KL: "Divergence of blended expectations from full ones, in nats.",
}

MISS_REASONS = (
    Reason.ABSENT,
    Reason.BEHIND_A_MISS,
    Reason.CLOSED,
    Reason.CORRUPT,
    Reason.DEVICE,
    Reason.EVICTED,
    Reason.EXPIRED,
    Reason.FAILED,
    Reason.LOST,
    Reason.NO_ANSWER,
    Reason.QUEUE_FULL,
    Reason.REFUSED,
    Reason.SLOWER,
    Reason.TIER_OFF,
    Reason.TIMED_OUT,
    Reason.UNKNOWN_SERDE,
)
"""Reasons of missed chunks: each has a series from the start."""

DROP_REASONS = (
    Reason.CLOSED,
    Reason.FAILED,
    Reason.NO_ROOM,
    Reason.NOT_COPIED,
    Reason.NOT_INDEXED,
    Reason.QUEUE_FULL,
    Reason.TIER_OFF,
    Reason.TIMED_OUT,
    Reason.UNLIKELY,
)
"""Reasons why tiers do not take chunks: each has a series from the start."""

BREAKER_REASONS = (Reason.FAILURES, Reason.TIMED_OUT)

BLEND_OUTCOMES = (
    "blended",
    "full",
    "not worth it",
    "no record",
    "switched off",
    "checked",
    "failed",
)
"""As ``hexkv-blending`` counts them."""

TIERED: frozenset[CounterName | HistogramName] = frozenset(
    {
        CounterName.HITS,
        CounterName.HIT_TOKENS,
        CounterName.STORED,
        CounterName.STORED_TOKENS,
        CounterName.DROPPED,
        CounterName.EVICTED,
        CounterName.CORRUPT,
        CounterName.RETRIES,
        CounterName.BREAKER_OPENED,
        CounterName.READ_BYTES,
        CounterName.WASTED_BYTES,
        CounterName.WRITTEN_BYTES,
        HistogramName.READ,
        HistogramName.WRITE,
        HistogramName.EVICTED_AGE,
        HistogramName.REUSE_GAP,
    }
)
"""The counters and histograms by tier."""

REASONS: Mapping[CounterName, Sequence[str]] = {
    CounterName.MISSES: MISS_REASONS,
    CounterName.MISSED_TOKENS: MISS_REASONS,
    CounterName.DROPPED: DROP_REASONS,
    CounterName.BREAKER_OPENED: BREAKER_REASONS,
    CounterName.BLEND_REQUESTS: BLEND_OUTCOMES,
    CounterName.BLEND_TOKENS: ("prefix", "reused", "recomputed", "computed"),
    CounterName.BLEND_SEGMENTS: ["loaded", *MISS_REASONS],
}
"""The counters by reason, and their known reasons."""

_LABELS = {
    CounterName.BLEND_REQUESTS: "outcome",
    CounterName.BLEND_TOKENS: "kind",
    CounterName.BLEND_SEGMENTS: "result",
}


def reason_label(counter: CounterName) -> str:
    """Return the name of *counter*'s other label, beside its tier."""
    return _LABELS.get(counter, "reason")


def bounds(histogram: HistogramName) -> Sequence[float]:
    """Return the upper bounds of the classes of *histogram*, in seconds; one more is open."""
    if histogram is HistogramName.BLEND_KL:
        return KL_BUCKETS
    return AGE_BUCKETS if histogram in _AGES else BUCKETS


def known_series(counter: CounterName, tiers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the labels *tier* and *reason* of *counter*'s series that exist from the start."""
    return product(
        tiers if counter in TIERED else ("",),
        map(str, REASONS[counter]) if counter in REASONS else ("",),
    )


Labels = Sequence[tuple[str, str]]


class Sample(NamedTuple):
    """One line of a family."""

    labels: Labels
    value: float
    suffix: str = ""
    """Appended to the family's name, as histograms have it."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all of its series."""

    name: str
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""

    text: str
    samples: Sequence[Sample]


def text_format(families: Iterable[Family]) -> str:
    """Return *families* in Prometheus's text format, version 0.0.4, without empty ones.

    https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    lines: list[str] = []
    for family in families:
        name = family.name
        if family.samples:
            lines.append(f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n")
        for labels, value, suffix in family.samples:
            shown = ",".join([f'{key}="{_escaped(text)}"' for key, text in labels if text])
            lines.append(
                f"{name}{suffix}{{{shown}}} {value}\n" if shown else f"{name}{suffix} {value}\n"
            )
    return "".join(lines)


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value
