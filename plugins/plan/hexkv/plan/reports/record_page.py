"""The page of ``hexkv report``, of the values that it prints as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hexkv.plan.reports import svg
from hexkv.plan.reports.document import figure, folded, heading, page, table, words
from hexkv.plan.reports.planned import sections
from hexkv.plugins.configuration.sizes import human_size

_PARTS = {
    "lookup": "asking before loading",
    "name": "cutting and hashing the prompt",
    "match": "asking where chunks are",
    "read": "waiting for chunks",
    "copy": "copying to the device",
    "promote": "giving chunks to faster tiers",
    "end": "the rest of a load",
    "whole": "loading layer by layer",
    "computed": "the model, and its host",
}


def record_page(report: Mapping[str, Any]) -> str:
    """Return the whole page."""
    record = report["record"]
    began = time.strftime("%Y-%m-%d %H:%M", time.gmtime(record["began"]))
    parts = [
        words(
            f"{record['model'] or 'A model'}, recorded from {began} UTC on for"
            f" {_seconds(record['seconds'])}: {report['requests']:,} requests with"
            f" {report['tokens']:,} tokens, of which {report['hit_tokens']:,}"
            f" ({report['hit_rate']:.1%}) came from the cache. A chunk has"
            f" {record['chunk_tokens']} tokens and {human_size(record['chunk_bytes'])}."
        ),
        *_caveats(record),
        *_tiers(report),
        *_time(report),
        *_over_time(report),
        *(sections(report["sizes"]) if report["sizes"] else []),
        *_changes(report),
    ]
    return page("What the cache did, and what it could do", parts)


def _caveats(record: Mapping[str, Any]) -> list[str]:
    """Return the reservations about the numbers, as a paragraph."""
    sentences = []
    if record["lost_calls"]:
        sentences.append(f"{record['lost_calls']:,} calls came too fast and are not in the record.")
    if record["cut_files"]:
        sentences.append(
            f"{record['cut_files']} files end in the middle of a line: what wrote them died."
        )
    if record["processes"] > 1:
        sentences.append(
            f"It is of {record['processes']} lives of a process: each names chunks anew, so what"
            " one stored looks new in the next."
        )
    return [words(" ".join(sentences))] if sentences else []


def _tiers(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            tier["name"],
            f"{tier['hit_tokens']:,}",
            f"{tier['stored_tokens']:,}",
            _size(tier["used_bytes"]),
            _size(tier["budget_bytes"]),
        )
        for tier in report["tiers"]
    ]
    missed = [(why, f"{tokens:,}") for why, tokens in _ordered(report["missed_tokens"])]
    reasons = [
        words("Tokens asked for and not loaded, by reason."),
        table(["reason", "tokens"], missed),
    ]
    return [
        heading("Where hits came from"),
        words(
            "Hits in tokens, as the engine's own counters have them. Stored counts the tokens that"
            " stores had written when they returned; later writes and promotions come on top."
        ),
        table(["tier", "hit", "stored", "used", "budget"], rows),
        *(reasons if missed else []),
    ]


def _time(report: Mapping[str, Any]) -> list[str]:
    groups = report["time"]
    if not groups:
        return []
    kinds = list(
        dict.fromkeys((part["part"], part["tier"]) for one in groups for part in one["parts"])
    )
    kinds.sort(key=lambda kind: [*_PARTS, kind[0]].index(kind[0]))
    names = [_part(*kind) for kind in kinds]
    spent = [{(p["part"], p["tier"]): p["seconds"] for p in one["parts"]} for one in groups]
    rows = [
        svg.Bar(f"{one['group']}: {one['requests']:,} requests", [had.get(k, 0.0) for k in kinds])
        for one, had in zip(groups, spent, strict=True)
    ]
    title = "Mean seconds before the first token, by part"
    columns = ["part", *(one["group"] for one in groups)]
    cells = [
        [f"{svg.letter(at)} {name}", *(_seconds(had.get(kind, 0.0)) for had in spent)]
        for at, (kind, name) in enumerate(zip(kinds, names, strict=True))
    ]
    sums = [_seconds(sum(had.values())) for had in spent]
    return [
        heading("Where time to first token went"),
        words(
            "Mean of the requests of each group. What the model and its host took is the time from"
            " the last word of the cache to the moment when the prompt's KV was given to it; of"
            " requests of which nothing new was stored it is not known, and left out."
        ),
        figure(svg.bars(rows, names, title=title, of=_seconds), names, boxes=True),
        table(
            columns,
            [
                *cells,
                ["all of it", *sums],
                ["half of them at most", *(_seconds(one["half_seconds"]) for one in groups)],
                ["nine of ten at most", *(_seconds(one["most_seconds"]) for one in groups)],
                ["requests", *(f"{one['requests']:,}" for one in groups)],
            ],
        ),
    ]


def _over_time(report: Mapping[str, Any]) -> list[str]:
    spans, fill = report["spans"], report["fill"]
    tiers = [tier["name"] for tier in report["tiers"]]
    unit, length = _unit(report["record"]["seconds"])
    asked = [span["tokens"] / span["seconds"] for span in spans]
    lines = [
        svg.ChartLine(
            f"from {name}", [span["hit_tokens"].get(name, 0) / span["seconds"] for span in spans]
        )
        for name in tiers
    ]
    lines.append(svg.ChartLine("asked for", asked, limit=True))
    at = [span["at_seconds"] / length for span in spans]
    made = [heading("Tiers over time"), *_timed(lines, at, unit, "tokens per second")]
    if fill:
        gib = [
            svg.ChartLine(
                name, [(state["used_bytes"].get(name) or 0) / (1 << 30) for state in fill]
            )
            for name in tiers
            if any(state["used_bytes"].get(name) is not None for state in fill)
        ]
        at = [state["at_seconds"] / length for state in fill]
        made += _timed(gib, at, unit, "GiB on a tier")
    return made


def _timed(
    lines: Sequence[svg.ChartLine], at: Sequence[float], unit: str, beside: str
) -> list[str]:
    """Return a drawing over time, and its table; for a single moment the table alone."""
    names = [line.name for line in lines]
    rows = [
        [f"{place:.2f}", *(f"{line.values[number]:,.4g}" for line in lines)]
        for number, place in enumerate(at)
    ]
    numbers = folded(f"{beside}, as numbers", table([unit, *names], rows))
    if len(at) < 2:
        return [numbers]
    drawn = svg.lines(
        lines,
        at,
        title=f"{beside} over time",
        below=unit,
        beside=beside,
        at="{:g}".format,
        of="{:,.6g}".format,
    )
    return [figure(drawn, names, [line.limit for line in lines]), numbers]


def _unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which *seconds* are shown, and its seconds."""
    if seconds <= 300:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds <= 4 * 3600 else ("hours", 3600.0)


def _changes(report: Mapping[str, Any]) -> list[str]:
    rate = report["compute_rate"]
    source = {
        "configured": "as configured (compute_rate)",
        "recorded": "by the time from the last word of the cache to the store of each prompt",
        None: "",
    }[rate["source"]]
    saved = (
        f" Time of computing is by {rate['tokens_per_second']:,.0f} tokens per second, {source}."
        if rate["source"]
        else ""
    )
    rows = [
        (
            row["what"],
            _size(row["bytes"]),
            "" if row["chunks"] is None else f"{row['chunks']:,}",
            f"{row['hit_rate']:.4f}",
            f"{row['hit_tokens_per_hour']:,.0f}",
            ""
            if row["saved_compute_seconds_per_hour"] is None
            else _seconds(row["saved_compute_seconds_per_hour"]),
        )
        for row in report["changes"]
    ]
    return [
        heading("What a change would bring"),
        words(
            f"The same requests through the policy {report['policy']}, on a tier that is empty at"
            " first. Every tier keeps every chunk unless configured otherwise, so all hits are"
            f" those of the largest one.{saved}"
        ),
        table(
            ["", "bytes", "chunks", "hit rate", "tokens an hour", "computing saved an hour"], rows
        ),
    ]


def _part(part: str, tier: str) -> str:
    name = _PARTS.get(part, part)
    return f"{name} of {tier}" if tier else name


def _ordered(tokens: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(tokens.items(), key=lambda item: -item[1])


def _size(size: int | None) -> str:
    return "" if size is None else human_size(size)


def _seconds(seconds: float) -> str:
    """Return a duration with three figures."""
    if seconds >= 120:
        return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
    return f"{seconds:.3g} s" if seconds >= 1 or not seconds else f"{seconds * 1000:.3g} ms"
