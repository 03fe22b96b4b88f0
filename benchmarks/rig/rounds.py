"""Sides that take turns in rounds: one ratio from each round, and what all of them say."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping
from typing import TypeVar

_Turn = TypeVar("_Turn", bound=Hashable)


def against(times: Mapping[_Turn, float], others: Mapping[_Turn, float]) -> dict[str, float]:
    """*times* as multiples of *others*, turn by turn: median and quartiles."""
    ratios = [times[turn] / others[turn] for turn in times.keys() & others.keys()]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {name: round(r, 4) for name, r in (("low", low), ("median", median), ("high", high))}
