"""Comparing a path with its physical limit: in turns, round by round, as a ratio.

Absolute times say more about the machine and its other tenants than about the code. Both
sides of a comparison run in one process, one after the other in every round, so that what
slows the machine down slows both, and each round gives one ratio. The result is the
median of these ratios and their quartiles.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Clock = Callable[[], float]


class WrongResult(Exception):
    """A path did not do what it is measured for: its time means nothing."""


def must(right: bool, what: str) -> None:
    """Stop where a path was fast because it did something else.

    Raises:
        WrongResult: not *right*.
    """
    if not right:
        raise WrongResult(what)


@dataclass(frozen=True, slots=True)
class Turn:
    """One side of a comparison."""

    run: Callable[[], object]

    before: Callable[[], object] | None = None
    """Puts things back before each run, untimed. Without it, a turn is many runs."""

    aside: Callable[[], float] | None = None
    """Seconds of the last run that do not count. Only with ``before``."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a ratio should be, and what the ratio is.

    ``speed`` is the share of the limit's speed that the path reaches, and at least the
    bound; ``cost`` is the path's time as a multiple of the limit's, and at most the bound, and
    ``cpu`` the same of CPU seconds.
    """

    kind: Literal["speed", "cost", "cpu"]
    bound: float | None = None

    def ratio(self, path: float, limit: float) -> float:
        """The ratio of one round, from the seconds of both sides."""
        return limit / path if self.kind == "speed" else path / limit

    def reached(self, ratio: float) -> bool | None:
        """True if *ratio* is good enough; ``None`` without a goal."""
        if self.bound is None:
            return None
        return ratio >= self.bound if self.kind == "speed" else ratio <= self.bound


@dataclass(frozen=True, slots=True)
class Comparison:
    """A path, and the least that the machine needs for the same bytes."""

    name: str
    limit_name: str
    size: int
    """Bytes that one run of either side treats."""

    path: Turn
    limit: Turn
    goal: Goal

    note: Callable[[], Mapping[str, float]] | None = None
    """Asked after each of the path's turns for what else it measured."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some numbers, and how far they lie from it."""

    median: float
    lower: float
    """The first quartile."""

    upper: float
    """The third quartile."""

    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of at least two values."""
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper, min(values), max(values))


@dataclass(frozen=True, slots=True)
class Side:
    """What one side took: for information, since another machine takes another time."""

    seconds: Spread
    """Of one run, over all rounds."""

    gb_per_second: float
    """At the median of the seconds; a GB is 10**9 bytes."""

    cpu_seconds_per_gb: float
    """The median, of all threads of the process, the kernel's work for it included."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a comparison gave."""

    comparison: Comparison
    ratios: list[float]
    """One per round, in order."""

    repeats: int
    """Runs in each turn."""

    path: Side
    limit: Side

    noted: dict[str, float] = field(default_factory=dict)
    """What else the path's turns measured: the median of each figure."""

    @property
    def ratio(self) -> Spread:
        """The ratios of all rounds."""
        return Spread.of(self.ratios)

    @property
    def reached(self) -> bool | None:
        """True if the median ratio reaches the goal."""
        return self.comparison.goal.reached(self.ratio.median)


def compare(
    comparison: Comparison,
    rounds: int,
    *,
    turn: float,
    clock: Clock = time.perf_counter,
    cpu: Clock = time.process_time,
) -> Result:
    """Let both sides take turns, limit first, after one turn each that is not counted.

    Args:
        comparison: the two sides.
        rounds: turns that each side takes, at least two.
        turn: seconds that a turn lasts at least, where it can be repeated.
        clock: for durations.
        cpu: seconds of CPU that the process has used.
    """
    path, limit = comparison.path, comparison.limit
    first, _ = _take(limit, 1, clock, cpu)
    _take(path, 1, clock, cpu)
    repeats = 1
    if path.before is None and limit.before is None:
        repeats = math.ceil(turn / max(first, turn / 1000))
    limits, paths = [], []
    notes: list[Mapping[str, float]] = []
    for _ in range(rounds):
        limits.append(_take(limit, repeats, clock, cpu))
        paths.append(_take(path, repeats, clock, cpu))
        if comparison.note is not None:
            notes.append(comparison.note())
    which = 1 if comparison.goal.kind == "cpu" else 0
    ratios = [
        comparison.goal.ratio(mine[which], bare[which])
        for mine, bare in zip(paths, limits, strict=True)
    ]
    return Result(
        comparison,
        ratios,
        repeats,
        _side(paths, comparison.size),
        _side(limits, comparison.size),
        {name: statistics.median(it[name] for it in notes) for name in (notes or [{}])[0]},
    )


def _take(turn: Turn, repeats: int, clock: Clock, cpu: Clock) -> tuple[float, float]:
    """Seconds and CPU seconds of one run, on average over *repeats*."""
    if turn.before is not None:
        turn.before()
    # What other code left behind is not collected on this turn's time; its own is.
    gc.collect()
    cpu_start, start = cpu(), clock()
    for _ in range(repeats):
        turn.run()
    end, cpu_end = clock(), cpu()
    if turn.aside is not None:
        end -= turn.aside()
    return (end - start) / repeats, (cpu_end - cpu_start) / repeats


def _side(turns: list[tuple[float, float]], size: int) -> Side:
    seconds = Spread.of([taken for taken, _ in turns])
    used = statistics.median(used for _, used in turns)
    return Side(seconds, size / seconds.median / 1e9, used / size * 1e9)


def timed(call: Callable[[], object]) -> float:
    """Seconds that *call* takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """Milliseconds: the least, the median and the last but a tenth."""
    ordered = sorted(times)
    return {
        "least_ms": round(ordered[0] * 1e3, 3),
        "median_ms": round(statistics.median(ordered) * 1e3, 3),
        "p90_ms": round(ordered[len(ordered) * 9 // 10] * 1e3, 3),
    }


def cost(run: Callable[[], object], before: Callable[[], object] | None = None) -> float:
    """CPU seconds of one run: the median of as many as a turn has time for."""
    times: list[float] = []
    spent = 0.0
    while spent < _TURN or len(times) < 5:
        if before is not None:
            before()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
        spent += times[-1]
    return statistics.median(times)


_TURN = 0.1
"""CPU seconds that :func:`cost` takes at least."""
