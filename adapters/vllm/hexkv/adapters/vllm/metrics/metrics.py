"""The counters and gauges for vLLM: its log line, and its ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock

from hexkv.adapters.vllm.messages import Missed
from hexkv.plugins.observing.families import HELP as ENGINE_HELP
from hexkv.plugins.observing.families import REASONS, TIERED, known_series, reason_label
from hexkv.plugins.observing.telemetry import BREAKER, Totals
from hexkv.ports import CounterName, Health, Telemetry

LOADED_TOKENS = "loaded_tokens"
LOADED_BYTES = "loaded_bytes"
LOAD_SECONDS = "load_seconds"
FAILED_TOKENS = "failed_tokens"
STORED_TOKENS = "stored_tokens"
STORED_BYTES = "stored_bytes"
STORE_SECONDS = "store_seconds"
DROPPED_TOKENS = "dropped_tokens"
WAITED_REQUESTS = "waited_requests"
WAITED_SECONDS = "waited_seconds"

HELP: Mapping[str, str] = {
    LOADED_TOKENS: "Tokens whose KV was loaded, summed over ranks.",
    LOADED_BYTES: "Bytes of KV that were loaded.",
    LOAD_SECONDS: "Seconds spent loading.",
    FAILED_TOKENS: "Tokens whose KV was found but did not arrive, and was computed.",
    STORED_TOKENS: "Tokens whose KV was copied to be stored, summed over ranks.",
    STORED_BYTES: "Bytes of KV that were copied to be stored.",
    STORE_SECONDS: "Seconds spent on copying KV to be stored, beside the steps.",
    WAITED_REQUESTS: "Requests that waited for another engine to compute their prompt.",
    WAITED_SECONDS: "Seconds for which they waited.",
    DROPPED_TOKENS: "Tokens whose KV was not stored, for want of memory or time.",
}


COUNTERS: Mapping[str, CounterName] = {
    "lookup_tokens": CounterName.LOOKUP_TOKENS,
    "hit_tokens": CounterName.HIT_TOKENS,
    "missed_tokens": CounterName.MISSED_TOKENS,
    "tier_stored_tokens": CounterName.STORED_TOKENS,
    "dropped_chunks": CounterName.DROPPED,
    "evicted_chunks": CounterName.EVICTED,
    "corrupt_chunks": CounterName.CORRUPT,
    "breaker_opened": CounterName.BREAKER_OPENED,
    "read_bytes": CounterName.READ_BYTES,
    "written_bytes": CounterName.WRITTEN_BYTES,
}
"""Totals of the engine of a rank, by their names here."""

GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tier_used_bytes": ("Bytes on a tier.", ("tier",)),
    "tier_budget_bytes": ("Bytes that a tier may hold.", ("tier",)),
    "tier_queued_bytes": ("Bytes of reads and writes that wait or run.", ("tier",)),
    "tier_breaker": ("State of a breaker: 0 closed, 1 half open, 2 open.", ("tier", "lane")),
}
"""The state of a rank's tiers: the help of each gauge, and its labels beside the rank."""

_PAUSE = 1.0
"""Seconds between two readings of the tiers' state."""

_AGAIN = 5.0
"""Seconds for which a changed value is reported again: vLLM may drop the report of a step."""

_BETWEEN = "\x1f"


def labels_of(name: str) -> tuple[str, ...]:
    """The labels of an engine's counter, or of a gauge of its tiers."""
    if name in GAUGES:
        return ("rank", *GAUGES[name][1])
    counter = COUNTERS[name]
    return (
        "rank",
        *("tier",) * (counter in TIERED),
        *(reason_label(counter),) * (counter in REASONS),
    )


def help_of(name: str) -> str:
    """The help of a counter or a gauge."""
    return GAUGES[name][0] if name in GAUGES else ENGINE_HELP[COUNTERS[name]]


def values_of(key: str) -> list[str]:
    """The values of the labels that *key* stands for."""
    return key.split(_BETWEEN)


class EngineReport:
    """The counters of a rank's engine, and the state of its tiers: as nested numbers, for vLLM.

    Totals, not increments, and each of them again for some seconds: a report that vLLM drops, as
    that of a step without output, costs only the delay until the next one.
    """

    def __init__(
        self,
        rank: int,
        telemetry: Telemetry,
        health: Callable[[], Health] | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Report *telemetry*, if it is :class:`Totals`, and *health*, if no call is needed for it.

        Args:
            rank: of the engine.
            telemetry: of the engine.
            health: of the engine; ``None`` where it takes a call to another process.
            now: seconds.
        """
        self._rank = str(rank)
        self._totals = telemetry if isinstance(telemetry, Totals) else None
        self._health = health
        self._now = now
        self._reported: dict[str, dict[str, tuple[float, float]]] = {}
        """The values of the last reports, and until when they are repeated."""

        self._nothing: dict[str, dict[str, float]] = {name: {} for name in (*COUNTERS, *GAUGES)}
        """Every series that is known, at zero."""

        self._looked: float | None = None

    def take(self) -> dict[str, dict[str, float]]:
        """Return the values that changed of late, by name and labels; all the first time."""
        if self._totals is None:
            return {}
        now = self._now()
        gauges: dict[str, dict[str, float]] = {name: {} for name in GAUGES}
        if self._health is not None and (self._looked is None or now - self._looked >= _PAUSE):
            first, self._looked = self._looked is None, now
            health = self._health()
            self._look(health, gauges)
            if first:
                tiers = [tier.name for tier in health.tiers]
                for name, counter in COUNTERS.items():
                    for tier, reason in known_series(counter, tiers):
                        self._nothing[name][self._key(*_labels(counter, tier, reason))] = 0
        found = {name: dict(zeros) for name, zeros in self._nothing.items()} | gauges
        names = {counter: name for name, counter in COUNTERS.items()}
        for (counter, tier, reason), amount in self._totals.counts().items():
            if counter in names:
                found[names[counter]][self._key(*_labels(counter, tier, reason))] = amount
        return dict(self._changed(found, now))

    def _look(self, health: Health, found: dict[str, dict[str, float]]) -> None:
        for tier in health.tiers:
            key = self._key(tier.name)
            for name in ("used_bytes", "budget_bytes", "queued_bytes"):
                amount = getattr(tier, name)
                if amount is not None:
                    found[f"tier_{name}"][key] = amount
            for lane, state in (("read", tier.reading), ("write", tier.writing)):
                found["tier_breaker"][self._key(tier.name, lane)] = BREAKER[state]

    def _changed(
        self, found: Mapping[str, dict[str, float]], now: float
    ) -> Iterator[tuple[str, dict[str, float]]]:
        for name, values in found.items():
            reported = self._reported.setdefault(name, {})
            for key, value in values.items():
                if key not in reported or reported[key][0] != value:
                    reported[key] = value, now + _AGAIN
            late = {key: value for key, value in values.items() if now < reported[key][1]}
            if late:
                yield name, late

    def _key(self, *labels: str) -> str:
        return _BETWEEN.join((self._rank, *labels))


def _labels(counter: CounterName, *values: str) -> list[str]:
    """The labels that *counter* has, of the values of *tier* and *reason*."""
    return [value for value, has in zip(values, (TIERED, REASONS), strict=True) if counter in has]


class Tally:
    """Adds up the activity of a rank. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, float] = {}

    def loaded(self, tokens: int, size: int, seconds: float) -> None:
        """KV was loaded."""
        self._add({LOADED_TOKENS: tokens, LOADED_BYTES: size, LOAD_SECONDS: seconds})

    def failed(self, tokens: int) -> None:
        """KV did not arrive."""
        self._add({FAILED_TOKENS: tokens})

    def stored(self, tokens: int, dropped: int, size: int, seconds: float) -> None:
        """KV was copied to be stored."""
        self._add(
            {
                STORED_TOKENS: tokens,
                DROPPED_TOKENS: dropped,
                STORED_BYTES: size,
                STORE_SECONDS: seconds,
            }
        )

    def waited(self, seconds: float) -> None:
        """A request has waited for another engine."""
        self._add({WAITED_REQUESTS: 1, WAITED_SECONDS: seconds})

    def take(self) -> dict[str, float]:
        """Return the counts since the last call; empty if there are none."""
        if not self._counts:
            return {}
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def _add(self, counts: Mapping[str, float]) -> None:
        with self._lock:
            for name, amount in counts.items():
                self._counts[name] = self._counts.get(name, 0) + amount


def count_missed(telemetry: Telemetry, missed: Sequence[Missed], each: int) -> None:
    """Count chunks that no load requests because they were not found; each has *each* keys."""
    for reason, chunks, tokens in missed:
        telemetry.count(CounterName.LOOKUPS, chunks * each)
        telemetry.count(CounterName.LOOKUP_TOKENS, tokens * each)
        telemetry.count(CounterName.MISSES, chunks * each, reason=reason)
        telemetry.count(CounterName.MISSED_TOKENS, tokens * each, reason=reason)


def per_second(counts: Mapping[str, float]) -> dict[str, int | float]:
    """*counts* as a line for people: whole numbers, and how fast bytes moved while they did."""
    line: dict[str, int | float] = {
        name: round(amount, 3) if name.endswith("seconds") else int(amount)
        for name, amount in counts.items()
    }
    for size, seconds in ((LOADED_BYTES, LOAD_SECONDS), (STORED_BYTES, STORE_SECONDS)):
        if counts.get(seconds):
            rate = counts.get(size, 0) / counts[seconds] / 1e9
            line[seconds.replace("seconds", "GB_per_second")] = round(rate, 2)
    return line
