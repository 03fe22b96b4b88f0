"""The contract of sinks of metrics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.telemetry._base import LOAD, TIERS, WORKERS, HearingCase, load
from hexkv.ports import CounterName, HistogramName, Reason, Telemetry

Total = Callable[[CounterName], int]
"""Returns the total of a counter over all tiers and reasons, once it is up to date."""


class TelemetryContract(HearingCase):
    """Subclass this and give it a ``telemetry`` fixture.

    Optional are ``total``, see :data:`Total`, and ``end``, which ends what the adapter has opened.
    """

    @pytest.fixture
    def telemetry(self) -> Telemetry:
        """A fresh sink. What it sends to need not be there."""
        raise NotImplementedError(f"give {type(self).__name__} a `telemetry` fixture")

    @pytest.fixture
    def total(self) -> Total | None:
        """A function that reads a counter back, for sinks where that can be read."""
        return None

    @promise(
        "telemetry.1",
        "has both methods of the port, and takes every counter, duration, tier and reason",
        level="L1",
        clause="Telemetry.count, Telemetry.observe",
        why="a number that is new, or a tier's name, would end a request",
        hint="escape names for what you write to; a name that you do not know is one more series",
    )
    def test_takes_whatever_is_counted(self, telemetry: Telemetry) -> None:
        assert isinstance(telemetry, Telemetry)
        for tier in TIERS:
            for counter in CounterName:
                for amount in (0, 1, 1 << 40):
                    assert _nothing(telemetry.count(counter, amount, tier=tier))  # type: ignore[func-returns-value]
                for reason in ("", *Reason, "a reason of a later version"):
                    telemetry.count(counter, 1, tier=tier, reason=reason)
            for histogram in HistogramName:
                for seconds in (0.0, 1e-9, 0.5, 1e6):
                    assert _nothing(telemetry.observe(histogram, seconds, tier=tier))  # type: ignore[func-returns-value]
        telemetry.count(CounterName.HITS, 1)
        telemetry.observe(HistogramName.READ, 0.1)

    @promise(
        "telemetry.2",
        "adds up every amount, whichever thread, tier and reason it comes with",
        level="L3",
        clause="Telemetry.count",
        why="hits and misses would not add up to lookups: no panel could be believed",
        hint="a read, an addition and a write are three steps: take a lock",
    )
    def test_amounts_add_up(self, telemetry: Telemetry, total: Total | None) -> None:
        if total is None:
            not_offered("total")
        before = total(CounterName.HITS), total(CounterName.LOOKUPS)

        def report(number: int) -> None:
            tier, reason = TIERS[number % len(TIERS)], ("", Reason.ABSENT)[number % 2]
            telemetry.count(CounterName.HITS, number % 5, tier=tier, reason=reason)

        load(report)
        telemetry.count(CounterName.HITS, 1 << 40)
        amount = (1 << 40) + sum(number % 5 for number in range(WORKERS * LOAD))
        after = total(CounterName.HITS), total(CounterName.LOOKUPS)
        assert (after[0] - before[0], after[1] - before[1]) == (amount, 0)

    @promise(
        "telemetry.3",
        "neither waits nor raises under load, whether or not its numbers are taken",
        level="L4",
        clause="Telemetry",
        why="each load of KV would wait for a server of numbers, or fail with it",
        hint="send without waiting, or queue within a bound; drop and count what does not fit",
    )
    def test_no_report_waits(self, telemetry: Telemetry) -> None:
        def report(number: int) -> None:
            telemetry.observe(HistogramName.READ, number * 1e-6, tier="memory")
            telemetry.count(CounterName.READ_BYTES, number, tier="memory")

        load(report)

    @promise(
        "telemetry.4",
        "takes numbers after its end",
        level="L0",
        clause="Telemetry",
        why="a worker that is late when a program stops would end with a foreign error",
    )
    def test_numbers_come_after_the_end(
        self, telemetry: Telemetry, end: Callable[[], None]
    ) -> None:
        telemetry.count(CounterName.HITS, 1)
        end()
        for _ in range(3):
            telemetry.count(CounterName.HITS, 1, tier="memory")
            telemetry.observe(HistogramName.READ, 0.1, tier="memory")


def _nothing(answer: object) -> bool:
    return answer is None
