"""The tables in ``docs/blending.md`` and a page of drawings, from the JSON that a run wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.quality.blended import ALL, LATER_KEYS, NONE, SELECTORS, UNROTATED
from benchmarks.quality.page import ROOT
from hexkv.plugins.reports import document, svg

PAGE = ROOT / "docs" / "blending.md"
RESULT = ROOT / "benchmarks" / "results" / "blending.json"
REPORT = ROOT / "build" / "blending.html"
TABLE = "make quality"
"""What writes the tables, one after the other."""

COLUMNS = (*SELECTORS, LATER_KEYS)
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
    return "".join([*parts, "\n", cheaper(run)])


def cheaper(run: Mapping[str, Any]) -> str:
    """A sentence for each model: what is computed at the divergence of LMCache's defaults."""
    lines = []
    for name, model in run["models"].items():
        said = model["against_lmcache"]
        least = said["least"]
        head = (
            f"- `{name}`: LMCache's rule, layer 1, {said['ratio']:.0%}: KL {1e3 * said['kl']:.3f},"
            f" {said['share']:.0%} computed. "
        )
        if least is None:
            lines.append(f"{head}Nothing here is as near for less.\n")
            continue
        compared = "fewer" if least["share"] < said["share"] else "not fewer"
        lines.append(
            f"{head}As near or nearer with the least: {least['selector']}, layer"
            f" {least['check_layer']}, {least['ratio']:.0%}: KL {1e3 * least['kl']:.3f},"
            f" {least['share']:.0%} computed, {compared}.\n"
        )
    return "".join(lines)


def against_lmcache(rows: Sequence[Row]) -> dict[str, Any]:
    """LMCache's rule at layer 1 and 15 %, and the cheapest of the others that is as near."""
    theirs = next(
        row
        for row in rows
        if (row["selector"], row["check_layer"], row["ratio"]) == (LATER_KEYS, 0, 0.15)
    )
    near = [
        row
        for row in rows
        if row["selector"] not in (LATER_KEYS, UNROTATED, ALL) and row["kl"] <= theirs["kl"]
    ]
    least = min(near, key=lambda row: (row["share"], row["kl"]), default=None)
    said = {name: theirs[name] for name in ("ratio", "kl", "kl_error", "share")}
    return said | {"least": dict(least) if least is not None else None}


def report(run: Mapping[str, Any]) -> str:
    """A page of its own: what is lost, by what is computed."""
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
            shares = [row["share"] for row in line]
            series.append(svg.Line(selector, [row[value] for row in line]))
        drawing = svg.lines(
            series,
            shares,
            title=f"{beside} of {name}, layer {check_layer} checked",
            below=f"share computed, layer {check_layer} checked",
            beside=beside,
            at="{:.0%}".format,
            of=of,
        )
        parts.append(document.figure(drawing, COLUMNS))
    return parts


def _table(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    head = ["layer", "ratio", "computed", *COLUMNS]
    lines = [head, ["--:"] * len(head)]
    at = {(row["check_layer"], row["ratio"], row["selector"]): row for row in rows}
    for row in rows:
        if row["selector"] in (UNROTATED, NONE, ALL):
            cells = [f"{cell(row)} ({row['selector']})", *[""] * (len(COLUMNS) - 1)]
        elif row["selector"] == COLUMNS[0]:
            key = row["check_layer"], row["ratio"]
            cells = [cell(at[*key, selector]) for selector in COLUMNS]
        else:
            continue
        layer, ratio = str(row["check_layer"]), f"{row['ratio']:.0%}"
        lines.append([layer, ratio, f"{row['share']:.0%}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _divergence(row: Row) -> str:
    return f"{1e3 * row['kl']:.3f} ± {1e3 * row['kl_error']:.3f}"


def _across(row: Row) -> str:
    return f"{row['right_across']:.1%}"
