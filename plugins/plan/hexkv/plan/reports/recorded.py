"""A record as JSON values: the numbers that ``hexkv report`` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hexkv.plan.lines import FillState
from hexkv.plan.recorded import COMPUTED, Served, over_time, served, spending, totals
from hexkv.plan.records import Record
from hexkv.plan.replay import Replay
from hexkv.plan.trace import TracedPrompt
from hexkv.ports import RecordedKind

SPANS = 30
"""Points of a drawing over time."""

GIB = 1 << 30
ADDED = 100 * GIB
_PARTS = 32
"""The smallest size tried, beside those of the tiers, is one in this many requested chunks."""


def measured(record: Record) -> dict[str, Any]:
    """Return everything that needs no replays."""
    head, requests = record.heads[0], served(record.calls, record.heads[0].chunk_tokens)
    hits, misses = totals(record.calls, RecordedKind.RETRIEVE)
    stored, _ = totals(record.calls, RecordedKind.STORE)
    tokens = sum(one.tokens for one in requests)
    rate, source = _compute_rate(head.compute_rate, requests)
    return {
        "record": {
            "model": head.model,
            "chunk_tokens": head.chunk_tokens,
            "chunk_bytes": head.chunk_bytes,
            "began": record.calls[0].began,
            "seconds": max(call.began + call.seconds for call in record.calls)
            - record.calls[0].began,
            "processes": record.records,
            "calls": len(record.calls),
            "lost_calls": record.lost,
            "cut_files": record.cut,
        },
        "requests": len(requests),
        "tokens": tokens,
        "hit_tokens": sum(hits.values()),
        "hit_rate": sum(hits.values()) / tokens if tokens else 0.0,
        "tiers": _by_tier(record.states, hits, stored),
        "missed_tokens": misses,
        "present_tokens": sum(call.present for call in record.calls),
        "compute_rate": {"tokens_per_second": rate, "source": source},
        "time": [
            {
                "group": one.name,
                "requests": one.requests,
                "half_seconds": one.half,
                "most_seconds": one.most,
                "parts": [
                    {"part": part, "tier": tier, "seconds": seconds}
                    for (part, tier), seconds in one.parts.items()
                ],
            }
            for one in spending(requests)
        ],
        "spans": [
            {
                "at_seconds": span.start - record.calls[0].began,
                "seconds": span.seconds,
                "requests": span.requests,
                "tokens": span.tokens,
                "hit_tokens": dict(span.tiers),
            }
            for span in over_time(requests, min(SPANS, max(1, len(requests) // 4)))
        ],
        "fill": [
            {
                "at_seconds": max(0.0, state.time - record.calls[0].began),
                "used_bytes": {name: used for name, (used, _, _) in state.tiers.items()},
            }
            for state in _thinned(record.states)
        ],
    }


def _by_tier(
    states: Sequence[FillState], hits: Mapping[str, int], stored: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return every tier with its hits and stores, and how full it was at last."""
    last = states[-1].tiers if states else {}
    names = [*last, *(name for name in (*hits, *stored) if name not in last)]
    rows = []
    for name in dict.fromkeys(names):
        used, budget, chunks = last.get(name, (None, None, None))
        rows.append(
            {
                "name": name,
                "hit_tokens": hits.get(name, 0),
                "stored_tokens": stored.get(name, 0),
                "used_bytes": used,
                "budget_bytes": budget,
                "chunks": chunks,
            }
        )
    return rows


def _compute_rate(
    configured: float | None, requests: Sequence[Served]
) -> tuple[float | None, str | None]:
    """Return the tokens that the model computes per second, and the source of that number."""
    if configured is not None:
        return configured, "configured"
    known = [one for one in requests if (COMPUTED, "") in one.parts]
    seconds = sum(one.parts[COMPUTED, ""] for one in known)
    computed = sum(max(0, one.tokens - one.hit_tokens) for one in known)
    return (computed / seconds, "recorded") if seconds and computed else (None, None)


def _thinned(states: Sequence[FillState]) -> Sequence[FillState]:
    """Return some of *states*, evenly, the last one included."""
    if len(states) <= SPANS:
        return states
    return [states[(len(states) - 1) * at // (SPANS - 1)] for at in range(SPANS)]


def sizes_of(report: Mapping[str, Any], requests: Sequence[TracedPrompt]) -> list[int]:
    """Return sizes worth a replay, in chunks: parts of all chunks, and the tiers' sizes."""
    there = len({key for request in requests for key in request.keys})
    if not there:
        return []
    tried = {-(-there * part // _PARTS) for part in (1, 2, 4, 8, 16, 32)}
    tried |= {chunks for _, chunks in present_sizes(report) if chunks and chunks <= there}
    return sorted(tried)


def present_sizes(report: Mapping[str, Any]) -> list[tuple[str, int | None]]:
    """Return each tier's name and the chunks that it may hold; ``None``: any number.

    By the bytes that a chunk takes there, which a serde reduces.
    """
    sizes: list[tuple[str, int | None]] = []
    for tier in report["tiers"]:
        each = _bytes_a_chunk(report, tier)
        budget = tier["budget_bytes"]
        if budget is not None or tier["used_bytes"] is not None:
            sizes.append((tier["name"], None if budget is None else max(1, int(budget / each))))
    return sizes


def _bytes_a_chunk(report: Mapping[str, Any], tier: Mapping[str, Any]) -> float:
    if tier["chunks"] and tier["used_bytes"]:
        return float(tier["used_bytes"]) / float(tier["chunks"])
    return float(report["record"]["chunk_bytes"])


def changes(report: Mapping[str, Any]) -> list[tuple[str, int | None, int | None]]:
    """Return possible changes: in words, the bytes of the largest tier, and its chunks.

    Each tier keeps every chunk unless it is configured otherwise, so the hits of all tiers are
    those of the largest one.
    """
    sizes = present_sizes(report)
    wanted: list[tuple[str, int | None, int | None]] = []
    for name, chunks in sizes:
        tier = next(tier for tier in report["tiers"] if tier["name"] == name)
        wanted.append((f"tier {name} alone, as large as it is", tier["budget_bytes"], chunks))
    known = [tier for tier in report["tiers"] if tier["budget_bytes"]]
    if known and all(chunks is not None for _, chunks in sizes):
        largest = max(known, key=lambda tier: float(tier["budget_bytes"]))
        each, budget = _bytes_a_chunk(report, largest), largest["budget_bytes"]
        for words, size in (
            (f"tier {largest['name']} with 100 GiB more", budget + ADDED),
            ("one more tier, ten times the largest", 10 * budget),
        ):
            wanted.append((words, size, int(size / each)))
    elif not sizes:
        each = float(report["record"]["chunk_bytes"])
        wanted.append(("a tier of 100 GiB", ADDED, int(ADDED / each)))
    return [*wanted, ("without limits", None, None)]


def changed(
    report: Mapping[str, Any],
    wanted: Sequence[tuple[str, int | None, int | None]],
    replayed: Sequence[Replay],
) -> list[dict[str, Any]]:
    """Return the hits of each of the *wanted* changes, as *replayed*, beside the recorded ones."""
    hours = max(report["record"]["seconds"], 1e-3) / 3600
    rate = report["compute_rate"]["tokens_per_second"]

    def row(
        words: str, size: int | None, chunks: int | None, hit: int, tokens: int
    ) -> dict[str, Any]:
        return {
            "what": words,
            "bytes": size,
            "chunks": chunks,
            "hit_rate": hit / tokens if tokens else 0.0,
            "hit_tokens_per_hour": hit / hours,
            "saved_compute_seconds_per_hour": None if rate is None else hit / hours / rate,
        }

    rows = [row("as it was recorded", None, None, report["hit_tokens"], report["tokens"])]
    for (words, size, chunks), found in zip(wanted, replayed, strict=True):
        rows.append(row(words, size, chunks, found.hit_tokens, found.tokens))
    return rows
