"""Which cases ``make test`` leaves to ``make test-thorough``, which runs everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import pytest
from hypothesis import settings


def thorough(*cases: object) -> list[object]:
    """*cases* for ``parametrize`` that ``make test`` leaves out; a tuple is of several values."""
    rows = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*row, marks=pytest.mark.thorough) for row in rows]


def covering(*columns: Iterable[object]) -> list[object]:
    """Every combination of *columns* for ``parametrize``.

    ``make test`` takes as many as the longest column is long: each value occurs in one of them.
    """
    lists: list[Sequence[object]] = [list(column) for column in columns]
    rows = range(max(map(len, lists)))
    quick = {tuple(row % len(column) for column in lists) for row in rows}
    return [
        pytest.param(
            *(column[at] for column, at in zip(lists, places, strict=True)),
            marks=() if places in quick else pytest.mark.thorough,
        )
        for places in product(*(range(len(column)) for column in lists))
    ]


def examples(count: int, times: int = 5) -> int:
    """How many examples hypothesis tries: *count*, and *times* as many in thorough runs."""
    return count * (times if settings().max_examples >= 500 else 1)
