"""The common part of both contracts: load, and the end of an adapter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hexkv.contracts.kit.promise import not_offered
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.kit.whole import Whole

WORKERS = 4
LOAD = 5_000
"""Reports of a thread under load: more than a queue holds, and each costs microseconds."""

PATIENCE = 20.0
"""Seconds of this process's time for ``LOAD`` reports of each thread: a wait in each is longer."""

TIERS = ("memory", "disk", "", "a tier, by any name", "\N{GREEK SMALL LETTER LAMDA}", 'a"b\\c\n')
"""Names of tiers as a configuration may have them."""


class HearingCase(Whole):
    """The fixture that both contracts share."""

    @pytest.fixture
    def end(self) -> Callable[[], None]:
        """A function that ends what the adapter has opened, while a cache still reports to it."""
        not_offered("end")


def load(report: Callable[[int], object]) -> None:
    """Call *report* ``LOAD`` times in each of several threads; check that none waits or raises."""
    __tracebackhide__ = True

    def work(worker: int) -> None:
        for number in range(LOAD):
            report(worker * LOAD + number)

    works = {f"thread {worker}": partial(work, worker) for worker in range(WORKERS)}
    with UnderWay(works, patience=PATIENCE) as crowd:
        late = crowd.late(PATIENCE)
        assert not late, f"{LOAD} reports took longer than {PATIENCE} s in {' and '.join(late)}"
