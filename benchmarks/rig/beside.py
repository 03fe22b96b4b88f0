"""What benchmarks have in common that compare processes: their options, and what they write."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.rig.machine import describe, load
from benchmarks.rig.measure import Comparison, Result, compare
from benchmarks.rig.report import table, to_json
from benchmarks.tiers.lmserver import cpu_clock

Rows = tuple[list[Comparison], list[int]]
"""What is compared, and the processes at the other ends."""


def options(module: str, about: str | None, output: Path) -> argparse.ArgumentParser:
    """A parser of the options of all these benchmarks."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn", type=float, default=0.2, help="seconds of a turn at least")
    parser.add_argument("--output", type=Path, default=output)
    return parser


def run(asked: argparse.Namespace, cases: Iterable[Callable[[ExitStack], Rows]]) -> int:
    """Compare in turns, show a table, and keep the results. The exit code: 3 if a goal is missed.

    CPU seconds are those of this process and of the others.
    """
    machine = describe(asked.output.parent)
    results: list[Result] = []
    for case in cases:
        with ExitStack() as ends:
            rows, others = case(ends)
            cpu = cpu_clock(others)
            results += [compare(row, asked.rounds, turn=asked.turn, cpu=cpu) for row in rows]
    said = {"rounds": asked.rounds, "cpu": "this process and the other ends", "machine": machine}
    keep(asked.output, said, [to_json(result) for result in results], "name", "kind")
    console = Console()
    console.print(table(results))
    console.print(f"written: {asked.output}", highlight=False, soft_wrap=True)
    return 3 if any(result.reached is False for result in results) else 0


def keep(
    path: Path, said: Mapping[str, object], rows: Sequence[Mapping[str, object]], *named: str
) -> None:
    """Write *rows*, each with the run that it is of, and leave others that *path* has.

    Args:
        path: of the results.
        said: of this run; its date and the load at its end are added.
        rows: the results.
        named: the fields by which a row takes the place of one of an earlier run.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"date": now, **said, "load_after": load()}
    before = json.loads(path.read_text())["results"] if path.exists() else []
    found = {tuple(row[name] for name in named): row for row in before if "run" in row}
    found |= {tuple(row[name] for name in named): {**row, "run": about} for row in rows}
    path.write_text(json.dumps({"results": list(found.values())}, indent=1) + "\n")
