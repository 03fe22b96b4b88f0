"""Numbers for whoever runs an engine: totals in memory, and as Prometheus reads them.

No client library: the text format is a few lines. Serve what :func:`render` gives under
``/metrics`` of whatever the host serves already.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock

from hexkv.ports import CacheLifecycle, CounterName, HistogramName

BUCKETS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the classes that durations are counted in, in seconds; one more is open."""

_BREAKER = {"closed": 0, "half open": 1, "open": 2}

HELP: Mapping[CounterName | HistogramName, str] = {
    CounterName.LOOKUPS: "Chunks that retrieves asked for.",
    CounterName.HITS: "Chunks that retrieves loaded, by tier.",
    CounterName.MISSES: "Chunks that retrieves did not load, by reason.",
    CounterName.STORED: "Chunks written, by tier.",
    CounterName.PRESENT: "Chunks that stores found there already.",
    CounterName.DROPPED: "Chunks that a tier did not take, by reason.",
    CounterName.EVICTED: "Chunks that gave way to others.",
    CounterName.CORRUPT: "Chunks that were not what had been put there.",
    CounterName.RETRIES: "Chunks that a store was asked for, or given, once more.",
    CounterName.BREAKER_OPENED: "Times that a lane of a tier was switched off.",
    CounterName.READ_BYTES: "Bytes of whole frames that came from a tier.",
    CounterName.WRITTEN_BYTES: "Bytes of frames that a tier took.",
    HistogramName.READ: "Durations of reads from a tier, with verification.",
    HistogramName.WRITE: "Durations of writes to a tier.",
    HistogramName.RETRIEVE: "Durations of retrieves.",
    HistogramName.STORE: "Durations of stores.",
}


class _Durations:
    """A histogram: how many in each class, and their sum."""

    __slots__ = ("classes", "total")

    def __init__(self) -> None:
        self.classes = [0] * (len(BUCKETS) + 1)
        self.total = 0.0


class Totals:
    """Adds up what it is told. Safe from any thread; never holds more than the label sets."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[CounterName, str, str]] = Counter()
        self._durations: dict[tuple[HistogramName, str], _Durations] = {}

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        with self._lock:
            self._counts[counter, tier, reason] += amount

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        place = bisect_left(BUCKETS, seconds)
        with self._lock:
            durations = self._durations.get((histogram, tier))
            if durations is None:
                durations = self._durations[histogram, tier] = _Durations()
            durations.classes[place] += 1
            durations.total += seconds

    def total(
        self, counter: CounterName, *, tier: str | None = None, reason: str | None = None
    ) -> int:
        """The sum over all labels that are not given."""
        with self._lock:
            return sum(
                amount
                for (name, where, why), amount in self._counts.items()
                if name == counter and tier in (None, where) and reason in (None, why)
            )

    def snapshot(self) -> dict[str, list[dict[str, object]]]:
        """Everything at one moment, as JSON values: ``counters`` and ``histograms``."""
        counts, durations = self._copy()
        return {
            "counters": [
                {"name": name.value, "tier": tier, "reason": reason, "value": amount}
                for (name, tier, reason), amount in counts
            ],
            "histograms": [
                {
                    "name": name.value,
                    "tier": tier,
                    "count": sum(classes),
                    "sum": total,
                    "buckets": [list(pair) for pair in zip((*BUCKETS, None), classes, strict=True)],
                }
                for (name, tier), classes, total in durations
            ],
        }

    def prometheus(self) -> str:
        """Everything at one moment, in the text format of Prometheus."""
        counts, durations = self._copy()
        lines: list[str] = []
        for counter in CounterName:
            rows = [
                ({"tier": tier, "reason": reason}, amount)
                for (name, tier, reason), amount in counts
                if name == counter
            ]
            lines += _family(f"hexkv_{counter}_total", "counter", HELP[counter], rows)
        for histogram in HistogramName:
            found = [(tier, c, total) for (name, tier), c, total in durations if name == histogram]
            if found:
                lines += _heading(f"hexkv_{histogram}", "histogram", HELP[histogram])
            for tier, classes, total in found:
                lines += _histogram(f"hexkv_{histogram}", tier, classes, total)
        return "".join(f"{line}\n" for line in lines)

    def _copy(
        self,
    ) -> tuple[
        list[tuple[tuple[CounterName, str, str], int]],
        list[tuple[tuple[HistogramName, str], list[int], float]],
    ]:
        with self._lock:
            counts = sorted(self._counts.items())
            durations = [(key, [*d.classes], d.total) for key, d in self._durations.items()]
        return counts, sorted(durations)


def render(engine: CacheLifecycle, totals: Totals | None = None) -> str:
    """All metrics of *engine* as Prometheus reads them: totals, and its state right now.

    Without *totals* those of the telemetry that the engine was built with are taken.

    Owners of leases and pins are requests, so they are summed up: their names would make a
    new time series each.
    """
    health = engine.health()
    lines: list[str] = []

    def gauge(name: str, text: str, rows: Iterable[tuple[Mapping[str, str], float | None]]) -> None:
        known = [(labels, value) for labels, value in rows if value is not None]
        lines.extend(_family(f"hexkv_{name}", "gauge", text, known))

    tiers = health.tiers
    gauge("tier_chunks", "Chunks on a tier.", (({"tier": t.name}, t.chunks) for t in tiers))
    gauge("tier_used_bytes", "Bytes on a tier.", (({"tier": t.name}, t.used_bytes) for t in tiers))
    gauge(
        "tier_budget_bytes",
        "Bytes that a tier may hold.",
        (({"tier": t.name}, t.budget_bytes) for t in tiers),
    )
    gauge(
        "tier_queued_bytes",
        "Bytes of reads and writes that wait or run.",
        (({"tier": t.name}, t.queued_bytes) for t in tiers),
    )
    gauge(
        "tier_breaker",
        "State of a lane's breaker: 0 closed, 1 half open, 2 open.",
        (
            ({"tier": t.name, "lane": lane}, _BREAKER[state])
            for t in tiers
            for lane, state in (("read", t.reading), ("write", t.writing))
        ),
    )
    gauge(
        "tier_indexing",
        "Whether what a tier holds is still being learnt.",
        (({"tier": t.name}, int(t.indexing)) for t in tiers),
    )
    failures = [({"tier": t.name}, t.failures) for t in tiers]
    lines += _family("hexkv_tier_failures_total", "counter", "Calls that failed.", failures)
    gauge("pool_bytes", "Bytes of the pool.", [({}, health.pool_bytes)])
    gauge("pool_held_bytes", "Bytes of blocks in use.", [({}, health.pool_held_bytes)])
    gauge("leases", "Leases on blocks.", [({}, sum(health.leases.values()))])
    gauge("pinned_chunks", "Pins, summed over tiers.", [({}, sum(health.pins.values()))])
    gauge("prefetches", "Prefetches that nobody has picked up.", [({}, health.prefetches)])
    gauge("open", "Whether the engine takes calls.", [({}, int(health.state == "open"))])
    told = engine.telemetry if totals is None else totals
    counted = told.prometheus() if isinstance(told, Totals) else ""
    return counted + "".join(f"{line}\n" for line in lines)


def _family(
    name: str, kind: str, text: str, rows: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    for n, (labels, value) in enumerate(rows):
        if not n:
            yield from _heading(name, kind, text)
        yield f"{name}{_labels(labels)} {value}"


def _heading(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _histogram(name: str, tier: str, classes: list[int], total: float) -> Iterator[str]:
    reached = 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), classes, strict=True):
        reached += count
        yield f"{name}_bucket{_labels({'tier': tier, 'le': bound})} {reached}"
    yield f"{name}_sum{_labels({'tier': tier})} {total}"
    yield f"{name}_count{_labels({'tier': tier})} {reached}"


def _labels(labels: Mapping[str, str]) -> str:
    """Labels in braces; an empty one is the same as none."""
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items() if value)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
