"""Results as JSON, and as a table for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TypedDict

from rich.table import Table

from benchmarks.rig.measure import Result

FORMAT = 1
"""Version of the JSON's shape."""

_COLOURS = {None: "", True: "[green]", False: "[red]"}


class ResultJson(TypedDict):
    """One comparison. Times are seconds, sizes are bytes, a GB is 10**9 bytes."""

    name: str
    limit: str
    kind: str
    """``speed``: share of the limit's speed; ``cost``: multiple of its time; ``cpu``: of CPU s."""

    goal: float | None
    reached: bool | None
    ratio: dict[str, float]
    ratios: list[float]
    size: int
    repeats: int
    noted: dict[str, float]
    """What else was measured, by name."""

    path_side: dict[str, object]
    limit_side: dict[str, object]


class RunJson(TypedDict):
    """One run of the benchmarks."""

    format: int
    date: str
    quick: bool
    rounds: int
    torch_threads: int
    machine: dict[str, object]
    versions: dict[str, str]
    results: list[ResultJson]


def to_json(result: Result) -> ResultJson:
    """A result as JSON values."""
    comparison = result.comparison
    return {
        "name": comparison.name,
        "limit": comparison.limit_name,
        "kind": comparison.goal.kind,
        "goal": comparison.goal.bound,
        "reached": result.reached,
        "ratio": asdict(result.ratio),
        "ratios": result.ratios,
        "size": comparison.size,
        "repeats": result.repeats,
        "noted": result.noted,
        "path_side": asdict(result.path),
        "limit_side": asdict(result.limit),
    }


def table(results: list[Result]) -> Table:
    """One row for each result."""
    drawn = Table(title="hexkv beside what the machine can do")
    drawn.add_column("path\nlimit")
    for column in ("ratio", "quartiles", "goal", "GB/s", "CPU s/GB"):
        drawn.add_column(column, justify="right", no_wrap=True)
    for result in results:
        path, limit = result.path, result.limit
        noted = "".join(f"\n[dim]{name} {value:.3g}[/]" for name, value in result.noted.items())
        drawn.add_row(
            f"{result.comparison.name}\n[dim]{result.comparison.limit_name}[/]{noted}",
            f"{_COLOURS[result.reached]}{result.ratio.median:.2f}",
            f"{result.ratio.lower:.2f}-{result.ratio.upper:.2f}",
            _goal(result),
            f"{path.gb_per_second:.2f}\n[dim]{limit.gb_per_second:.2f}[/]",
            f"{path.cpu_seconds_per_gb:.3f}\n[dim]{limit.cpu_seconds_per_gb:.3f}[/]",
        )
    drawn.caption = "speed: share of the limit's speed; cost, cpu: multiple of its time, CPU time"
    return drawn


def _goal(result: Result) -> str:
    goal = result.comparison.goal
    if goal.bound is None:
        return goal.kind
    return f"{goal.kind} {'>=' if goal.kind == 'speed' else '<='} {goal.bound:g}"
