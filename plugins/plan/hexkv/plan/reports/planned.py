"""The page of ``hexkv plan``: hit rate against size, for each policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexkv.plan.reports import svg
from hexkv.plan.reports.document import figure, heading, page, table, words
from hexkv.plugins.configuration.sizes import human_size

FUTURE, UNLIMITED = "knowing the future", "without limits"


def lines_of(report: Mapping[str, Any]) -> list[svg.ChartLine]:
    """Return a line for each policy and each limit, from the output of ``hexkv plan --json``."""
    sizes = report["sizes"]
    made = [
        svg.ChartLine(name, [size["policies"][name]["hit_rate"] for size in sizes])
        for name in sizes[0]["policies"]
    ]
    made.append(svg.ChartLine(FUTURE, [size["optimal"] for size in sizes], limit=True))
    made.append(svg.ChartLine(UNLIMITED, [report["unlimited"]] * len(sizes), limit=True))
    return made


def drawing(report: Mapping[str, Any]) -> str:
    """Return the lines as a drawing."""
    room = report["block_bytes"]
    return svg.lines(
        lines_of(report),
        [size["blocks"] for size in report["sizes"]],
        title="Share of the tokens that is found, by size and policy",
        below="what a tier holds" if room else "blocks a tier holds",
        beside="share of tokens found",
        at=(lambda blocks: human_size(round(blocks * room))) if room else _number,
        logarithmic=True,
    )


def sections(report: Mapping[str, Any]) -> list[str]:
    """Return heading, drawing and table."""
    lines = lines_of(report)
    room = report["block_bytes"]
    rows = []
    for at, size in enumerate(report["sizes"]):
        bytes_ = [human_size(size["blocks"] * room)] if room else []
        rates = [f"{line.values[at]:.4f}" for line in lines]
        rows.append([f"{size['blocks']:,}", *bytes_, *rates])
    names = [line.name for line in lines]
    limits = [line.limit for line in lines]
    return [
        heading("Hit rate against size"),
        words(
            f"{report['requests']:,} requests with {report['tokens']:,} tokens were replayed"
            " through a tier that is empty at first, in chunks of"
            f" {report['block_tokens']} tokens. The rate is the share of all tokens that it finds."
            " Nothing of a size can find more than who knows the future, and nothing of any size"
            " more than a tier without limits."
        ),
        figure(drawing(report), names, limits),
        table(["chunks", *(["size"] if room else []), *names], rows),
    ]


def plan_page(report: Mapping[str, Any]) -> str:
    """Return the whole page, from the output of ``hexkv plan --json``."""
    return page(f"Plan for {report['trace']}", sections(report))


def _number(value: float) -> str:
    return f"{value:,.0f}"
