"""Sinks of metrics that wait, raise, or count wrongly."""

from __future__ import annotations

from collections import defaultdict
from threading import Event, Lock

import pytest

from hexkv.contracts.telemetry import TelemetryContract
from hexkv.ports import CounterName
from mutants.rows import Wrong, broken


class Sums:
    """A correct Telemetry, in memory."""

    def __init__(self):
        self.totals, self.seconds, self.lock = defaultdict(int), defaultdict(float), Lock()
        self.open = True

    def count(self, counter, amount, *, tier="", reason=""):
        with self.lock:
            self.add(counter, amount, tier, reason)

    def add(self, counter, amount, tier, reason):
        self.totals[counter, tier, reason] += amount

    def observe(self, histogram, seconds, *, tier=""):
        with self.lock:
            self.seconds[histogram, tier] += seconds

    def total(self, counter):
        return sum(amount for (name, *_), amount in self.totals.items() if name == counter)

    def end(self):
        self.open = False


class Hurried:
    """A wait is seen soon."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        monkeypatch.setattr("hexkv.contracts.telemetry._base.PATIENCE", 3.0)


class SumsContract(Hurried, TelemetryContract):
    Make = Sums

    @pytest.fixture
    def telemetry(self):
        return self.Make()

    @pytest.fixture
    def total(self, telemetry):
        return telemetry.total

    @pytest.fixture
    def end(self, telemetry):
        return telemetry.end


def knows_some_counters(self, real, counter, amount, *, tier="", reason=""):
    {CounterName.HITS: 0, CounterName.LOOKUPS: 0, CounterName.READ_BYTES: 0}[counter]
    real(counter, amount, tier=tier, reason=reason)


def wants_plain_names(self, real, histogram, seconds, *, tier=""):
    tier.encode("ascii")
    real(histogram, seconds, tier=tier)


def adds_in_two_steps(self, counter, amount, *, tier="", reason=""):
    before = self.totals[counter, tier, reason]
    Event().wait(0.0)
    self.totals[counter, tier, reason] = before + amount


def keeps_the_last_reason(self, counter, amount, tier, reason):
    self.totals[counter, tier, ""] = max(amount, self.totals[counter, tier, ""])


def sends_each_number(self, real, histogram, seconds, *, tier=""):
    Event().wait(0.002)
    real(histogram, seconds, tier=tier)


def waits_while_it_is_full(self, counter, amount, tier, reason):
    self.totals[counter, tier, reason] += amount
    self.waiting = getattr(self, "waiting", 0) + 1
    if self.waiting > 1000:
        Event().wait(1.0)


def counts_to_a_closed_file(self, real, counter, amount, *, tier="", reason=""):
    if not self.open:
        raise ValueError("I/O operation on closed file")
    real(counter, amount, tier=tier, reason=reason)


def counts_up_to_32_bits(self, real, counter, amount, tier, reason):
    real(counter, amount & 0xFFFF_FFFF, tier, reason)


SUMS = {
    "telemetry.2 counts up to 32 bits": Wrong(
        "An amount of more than 32 bits is cut.", add=counts_up_to_32_bits
    ),
    "telemetry.1 knows some counters": Wrong(
        "A counter of a later version is an error.", count=knows_some_counters
    ),
    "telemetry.1 wants plain names": Wrong(
        "A tier's name is sent in ASCII.", observe=wants_plain_names
    ),
    "telemetry.2 adds in two steps": Wrong("Threads lose amounts.", count=adds_in_two_steps),
    "telemetry.2 keeps the largest": Wrong("A total is a gauge.", add=keeps_the_last_reason),
    "telemetry.3 sends each number": Wrong(
        "A server answers before a report ends.", observe=sends_each_number
    ),
    "telemetry.3 waits while it is full": Wrong(
        "A queue that is full makes reports wait.", add=waits_while_it_is_full
    ),
    "telemetry.4 counts to a closed file": Wrong(
        "What its end has closed is written to.", count=counts_to_a_closed_file
    ),
}
globals().update(broken(__name__, SumsContract, Sums, SUMS))
