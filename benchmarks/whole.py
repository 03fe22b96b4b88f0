"""``python -m benchmarks.whole``: every benchmark of ``make bench``, section by section, in one.

Each section is a process of its own. What it found goes into ``results/whole.json`` when it ends,
in place of what that section found before: so a run may be made in pieces (``--only``), broken off
and gone on with (``--missing``), and no results are joined by hand. At the end all goals that were
missed are printed, also those of sections that did not run now; ``docs/measured.md`` has all.
The exit code is 3 if a goal was missed, 1 if a section failed or never ran.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rig.machine import describe, load

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "results" / "whole.json"
PAGE = HERE.parent / "docs" / "measured.md"
START, END = "<!-- by make bench: start -->\n", "<!-- by make bench: end -->\n"
SHORT = 3
"""The exit code of a section of which a goal was missed."""

SUITES = ("keys", "lookup", "again", "segments", "memory", "pages", "disk", "direct", "layers")
SECTIONS: dict[str, tuple[str, ...]] = {
    **{name: ("benchmarks", "--only", name) for name in (*SUITES, "crowd")},
    "fixed": ("benchmarks.calls.fixed",),
    "redis": ("benchmarks.tiers.redis_tier",),
    "lmserver": ("benchmarks.tiers.lmserver",),
    "serdes": ("benchmarks.tiers.serdes",),
    "directory": ("benchmarks.fleet.directory",),
    "channels": ("benchmarks.fleet.channels",),
    "peers": ("benchmarks.fleet.peers",),
    "collective": ("benchmarks.fleet.collective",),
    "observe": ("benchmarks.observing.observe",),
    "record": ("benchmarks.observing.record",),
    "node": ("benchmarks.fleet.node",),
}
"""What to run, by name; each takes ``--output``."""

ROUNDS = {*SUITES, "crowd", "fixed", "redis", "lmserver", "channels", "peers", "collective"}
"""Sections that take ``--rounds``."""


class Judged(NamedTuple):
    """A figure that has a goal."""

    section: str
    name: str
    figure: str
    goal: str
    reached: bool


def judged(section: str, found: object, field: str = "") -> Iterator[Judged]:
    """The parts of a section's result that have a goal, however deep.

    What has no name of its own is called by the *field* in which it stands.
    """
    if isinstance(found, Mapping):
        reached = found.get("reached")
        if found.get("goal") in ("reached", "missed"):
            reached = found["goal"] == "reached"
        if isinstance(reached, bool):
            yield Judged(section, _name(found) or field, *_figure(found), reached)
        for name, value in found.items():
            yield from judged(section, value, name)
    elif isinstance(found, list):
        for value in found:
            yield from judged(section, value, field)


def _name(row: Mapping[str, Any]) -> str:
    words = [row[key] for key in ("name", "what", "kv", "serde", "limit") if row.get(key)]
    return ", ".join(map(str, words)) or ", ".join(str(v) for v in row.values() if type(v) is str)


def _figure(row: Mapping[str, Any]) -> tuple[str, str]:
    """The result, and the goal."""
    if isinstance(row.get("ratio"), Mapping):
        spread, kind = row["ratio"], row["kind"]
        figure = f"{spread['median']:.2f} ({spread['lower']:.2f} to {spread['upper']:.2f})"
        return figure, f"{kind} {'>=' if kind == 'speed' else '<='} {row['goal']:g}"
    spreads = {k: v["median"] for k, v in row.items() if isinstance(v, Mapping) and "median" in v}
    plain = {k: v for k, v in row.items() if isinstance(v, int | float) and type(v) is not bool}
    wanted = {k: plain.pop(k) for k in [*plain] if k.startswith("goal")}
    shown = spreads | plain
    return _listed(shown), _listed(wanted) or "as in the README of benchmarks"


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.4g}" for name, number in [*numbers.items()][:4])


def run(name: str, rounds: int | None, limit: float) -> dict[str, Any]:
    """One section's result, and how it ended."""
    command = [sys.executable, "-m", *SECTIONS[name]]
    if rounds is not None and name in ROUNDS:
        command += ["--rounds", str(rounds)]
    began, before = time.monotonic(), load()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command += ["--output", str(output)]
        try:
            code = subprocess.run(command, cwd=HERE.parent, timeout=limit, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
        found = json.loads(output.read_text()) if output.is_file() else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "rounds": rounds,
        "exit": code,
        "load": [before, load()],
        "processor": describe(HERE)["processor"],
        "result": _shorter(found),
    }


def _shorter(found: Any) -> Any:
    """A result without the ratio of each round."""
    if isinstance(found, dict):
        return {key: _shorter(value) for key, value in found.items() if key != "ratios"}
    return [_shorter(value) for value in found] if isinstance(found, list) else found


def page(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The sections and their goals, as Markdown."""
    lines = [
        "| section | date | processor | load | seconds | ended |",
        "| --- | --- | --- | --- | --: | --- |",
    ]
    for name in SECTIONS:
        if name not in sections:
            lines.append(f"| {name} | never run | | | | |")
            continue
        one = sections[name]
        ended = {0: "well", SHORT: "short of a goal"}.get(one["exit"], f"failed ({one['exit']})")
        day, loads = one["date"][:16].replace("T", " "), " to ".join(map(str, one["load"]))
        lines.append(
            f"| {name} | {day} | {one['processor']} | {loads} | {one['seconds']} | {ended} |"
        )
    lines += ["", "| section | what | figure | goal | verdict |", "| --- | --- | --- | --- | --- |"]
    for row in rows(sections):
        verdict = "reached" if row.reached else "**missed**"
        lines.append(f"| {row.section} | {row.name} | {row.figure} | {row.goal} | {verdict} |")
    return "\n".join(lines) + "\n"


def rows(sections: Mapping[str, Mapping[str, Any]]) -> list[Judged]:
    """All figures that have goals, in the order of the sections."""
    return [
        row
        for name in SECTIONS
        if name in sections
        for row in judged(name, sections[name]["result"])
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sections, join, print. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), help="some of the sections")
    parser.add_argument(
        "--missing", action="store_true", help="those that have no result, or failed"
    )
    parser.add_argument("--rounds", type=int, help="turns that each side takes, where it is open")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for each section")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--page", type=Path, default=PAGE, help="whose table is replaced")
    asked = parser.parse_args(arguments)
    sections: dict[str, dict[str, Any]] = {}
    if asked.output.is_file():
        sections = json.loads(asked.output.read_text())["sections"]
    names = asked.only or list(SECTIONS)
    if asked.missing:
        names = [name for name in names if sections.get(name, {}).get("exit") not in (0, SHORT)]
    for name in names:
        print(f"== {name}", flush=True)
        sections[name] = run(name, asked.rounds, asked.limit)
        ordered = {each: sections[each] for each in SECTIONS if each in sections}
        asked.output.write_text(json.dumps({"format": 1, "sections": ordered}, indent=1) + "\n")
        _replace(asked.page, page(ordered))
    found = rows(sections)
    for row in found:
        if not row.reached:
            print(f"short of its goal: {row.section}: {row.name}: {row.figure}, wanted {row.goal}")
    broken = [name for name in SECTIONS if sections.get(name, {}).get("exit") not in (0, SHORT)]
    print(f"{sum(row.reached for row in found)} of {len(found)} goals reached;", end=" ")
    print(f"failed or never run: {', '.join(broken) or 'none'}; {asked.output}")
    if broken:
        return 1
    return SHORT if any(not row.reached for row in found) else 0


def _replace(where: Path, table: str) -> None:
    before, _, rest = where.read_text().partition(START)
    after = rest.partition(END)[2]
    where.write_text(before + START + table + END + after)


if __name__ == "__main__":
    sys.exit(main())
