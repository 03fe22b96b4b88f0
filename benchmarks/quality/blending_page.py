"""The tables in ``docs/blending.md`` and a page of drawings, from the JSON that a run wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.quality.blended import ALL, LATER_KEYS, NONE, SELECTORS, UNROTATED
from benchmarks.quality.page import ROOT
from hexkv.plan.reports import document, svg

PAGE = ROOT / "docs" / "blending.md"
RESULT = ROOT / "benchmarks" / "results" / "blending.json"
REPORT = ROOT / "build" / "blending.html"
TABLE = "make quality"
"""What writes the tables, one after the other."""

COLUMNS = (*SELECTORS, LATER_KEYS)
_NOTHING = 1e-5
"""Nats, below which nobody needs to be nearer."""

Row = Mapping[str, Any]


def tables(run: Mapping[str, Any]) -> str:
    """For each model a table of divergences; where segments lean on each other, one of answers."""
    parts = []
    for name, model in run["models"].items():
        parts.append(f"\nKL of `{name}`, thousandths of a nat, {model['prompts']} prompts:\n\n")
        parts.append(_table(model["rows"], _divergence))
        if model["rows"][0]["right_across"] is not None:
            full = model["rows"][0]["full_across"]
            parts.append(
                f"\nRight answers of `{name}` that hang on another segment, of {full:.1%} by full"
                " computation:\n\n"
            )
            parts.append(_table(model["rows"], _across))
        parts.append(
            f"\nThe cheapest of all settings for `{name}` that are as near as LMCache's rule:\n\n"
        )
        parts.append(_compared(model["against_lmcache"]))
    return "".join([*parts, "\n"])


def against_lmcache(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each setting of LMCache's rule that no cheaper one reaches, and the cheapest of the others.

    The other one is as near to full computation within a standard error.
    """
    theirs = sorted(
        (row for row in rows if row["selector"] == LATER_KEYS),
        key=lambda row: (row["share"], row["kl"]),
    )
    others = [row for row in rows if row["selector"] not in (LATER_KEYS, UNROTATED, ALL)]
    found: list[dict[str, Any]] = []
    for row in theirs:
        if found and found[-1]["rule"]["kl"] < _NOTHING:
            break
        if found and row["kl"] >= found[-1]["rule"]["kl"]:
            continue
        bound = max(row["kl"] + row["kl_error"], _NOTHING)
        near = [other for other in others if other["kl"] <= bound]
        least = min(near, key=lambda other: (other["share"], other["kl"]), default=None)
        found.append({"rule": dict(row), "least": None if least is None else dict(least)})
    return found


def _compared(found: Sequence[Mapping[str, Any]]) -> str:
    head = ["LMCache's rule: layer", "ratio", "KL", "computed"]
    head += ["as near: selector", "layer", "ratio", "KL", "computed"]
    lines = [head, ["--:"] * 4 + ["---"] + ["--:"] * 4]
    for pair in found:
        rule, least = pair["rule"], pair["least"]
        cells = [str(rule["check_layer"] + 1), *_brief(rule)]
        if least is None:
            cells += ["none", *[""] * 4]
        else:
            cells += [least["selector"], str(least["check_layer"]), *_brief(least)]
        lines.append(cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _brief(row: Row) -> list[str]:
    return [f"{row['ratio']:.0%}", f"{1e3 * row['kl']:.3f}", f"{row['share']:.0%}"]


def report(run: Mapping[str, Any]) -> str:
    """A page of its own: the loss, by the share that is computed."""
    parts = [
        document.words(
            "How far what a model expects is from full computation, by the share of tokens and"
            " layers behind the exact prefix that is computed. Each drawing is of one check layer,"
            " from nothing but it to half of the reused tokens behind it."
        )
    ]
    for name, model in run["models"].items():
        parts.append(document.heading(f"Model {name}: {model['prompts']} prompts"))
        rows = model["rows"]
        parts.extend(_drawings(name, rows, "kl", "KL, nats", "{:.2g}".format))
        if rows[0]["right_across"] is not None:
            parts.extend(
                _drawings(name, rows, "right_across", "right across segments", "{:.0%}".format)
            )
        parts.append(
            document.folded(
                "the numbers",
                document.table(
                    ("selector", "layer", "ratio", "computed", "KL", "±", "same", "right"),
                    [
                        (
                            row["selector"],
                            str(row["check_layer"]),
                            f"{row['ratio']:.0%}",
                            f"{row['share']:.1%}",
                            f"{row['kl']:.6f}",
                            f"{row['kl_error']:.6f}",
                            f"{row['agreement']:.2%}",
                            f"{row['right']:.2%}",
                        )
                        for row in rows
                    ],
                ),
            )
        )
    return document.page("Blending: what is lost by what is computed", parts)


def _drawings(
    name: str, rows: Sequence[Row], value: str, beside: str, of: Callable[[float], str]
) -> list[str]:
    parts = []
    for check_layer in sorted({row["check_layer"] for row in rows}):
        series = []
        shares: list[float] = []
        for selector in COLUMNS:
            line = [
                row
                for row in rows
                if row["check_layer"] == check_layer and row["selector"] in (NONE, selector)
            ]
            if len(line) > 1:  # deviations are not compared in layer 0
                shares = [row["share"] for row in line]
                series.append(svg.ChartLine(selector, [row[value] for row in line]))
        drawing = svg.lines(
            series,
            shares,
            title=f"{beside} of {name}, layer {check_layer} checked",
            below=f"share computed, layer {check_layer} checked",
            beside=beside,
            at="{:.0%}".format,
            of=of,
            logarithmic=True,  # so that every share is written below the drawing
        )
        parts.append(document.figure(drawing, [line.name for line in series]))
    return parts


def _table(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    head = ["layer", "ratio", "computed", *COLUMNS]
    lines = [head, ["--:"] * len(head)]
    at = {(row["check_layer"], row["ratio"], row["selector"]): row for row in rows}
    for row in rows:
        if row["selector"] in (UNROTATED, NONE, ALL):
            cells = [f"{cell(row)} ({row['selector']})", *[""] * (len(COLUMNS) - 1)]
        elif row["selector"] == COLUMNS[-1]:
            key = row["check_layer"], row["ratio"]
            cells = [cell(at[*key, name]) if (*key, name) in at else "" for name in COLUMNS]
        else:
            continue
        layer, ratio = str(row["check_layer"]), f"{row['ratio']:.0%}"
        lines.append([layer, ratio, f"{row['share']:.0%}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _divergence(row: Row) -> str:
    return f"{1e3 * row['kl']:.3f} ± {1e3 * row['kl_error']:.3f}"


def _across(row: Row) -> str:
    return f"{row['right_across']:.1%}"
