"""Metrics of an engine: totals in memory, and in the format of Prometheus.

No client library: the text format is a few lines. Serve the result of :func:`render` under
``/metrics`` of any server that the host has already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from threading import Lock
from typing import Protocol

from hexkv.plugins.discovery.discovery import installed_version
from hexkv.plugins.observing.families import (
    BUCKETS,
    HELP,
    TIERED,
    Family,
    Labels,
    Sample,
    bounds,
    known_series,
    reason_label,
    text_format,
)
from hexkv.ports import CounterName, Health, HistogramName, Namespace, Telemetry, TierHealth

__all__ = ["BREAKER", "BUCKETS", "HELP", "EngineInfo", "Role", "Totals", "families", "render"]

BREAKER = {"closed": 0, "half open": 1, "open": 2}
"""States of a lane, as metrics give them."""


class Role(StrEnum):
    """What a process has of a cache: it tells apart what two processes count of one event."""

    ENGINE = "engine"
    """Requests, and tiers of its own."""

    CLIENT = "client"
    """Requests. Its tiers are those of a node, which shows them, too."""

    NODE = "node"
    """Tiers. Its clients count the requests, too."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The description of an engine in metrics."""

    engine: str = ""
    """Its name among several of one process; empty for the only one."""

    rank: str = ""
    """Empty where there is one."""

    role: str = ""
    """The part in a machine that several processes of hexkv share: see ``Role``."""

    model: str = ""
    revision: str = ""
    layout: str = ""
    version: str = ""
    compute_rate: float | None = None
    """Tokens per second that the model computes, if that is known."""

    @classmethod
    def of(cls, namespace: Namespace, rate: float | None, *, client: bool) -> EngineInfo:
        """Return that of an engine for *namespace*; *client*: over a node."""
        layout, parallel = namespace.layout, namespace.parallel
        return cls(
            "",
            str(parallel.rank) if parallel.world > 1 else "",
            Role.CLIENT if client else Role.ENGINE,
            namespace.model,
            namespace.revision,
            f"{layout.dtype.value}, {layout.layers} layers, {layout.token_bytes} bytes a token",
            installed_version("hexkv"),
            rate,
        )


class Counted(Protocol):
    """An object with metrics: an engine, or another that reports its health."""

    @property
    def telemetry(self) -> Telemetry: ...
    def health(self) -> Health: ...


class _Durations:
    """A histogram: the number in each class, and their sum."""

    __slots__ = ("bounds", "classes", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.classes = [0] * (len(bounds) + 1)
        self.total = 0.0


class Totals:
    """Adds up all reports. Safe from any thread; never holds more than the label sets."""

    def __init__(self) -> None:
        self.info = EngineInfo()
        """The engine of these totals; set by its builder."""

        self._lock = Lock()
        self._counts: Counter[tuple[CounterName, str, str]] = Counter()
        self._durations: dict[tuple[HistogramName, str], _Durations] = {}

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        with self._lock:
            self._counts[counter, tier, reason] += amount

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        with self._lock:
            durations = self._durations.get((histogram, tier))
            if durations is None:
                durations = self._durations[histogram, tier] = _Durations(bounds(histogram))
            durations.classes[bisect_left(durations.bounds, seconds)] += 1
            durations.total += seconds

    def total(
        self, counter: CounterName, *, tier: str | None = None, reason: str | None = None
    ) -> int:
        """Return the sum over all labels that are not given."""
        with self._lock:
            return sum(
                amount
                for (name, where, why), amount in self._counts.items()
                if name == counter and tier in (None, where) and reason in (None, why)
            )

    def counts(self) -> dict[tuple[CounterName, str, str], int]:
        """Return every total so far, by counter, tier and reason."""
        with self._lock:
            return dict(self._counts)

    def snapshot(self) -> dict[str, list[dict[str, object]]]:
        """Return everything at one moment, as JSON values: ``counters`` and ``histograms``."""
        counts, durations = self._copy()
        return {
            "counters": [
                {"name": name.value, "tier": tier, "reason": reason, "value": amount}
                for (name, tier, reason), amount in sorted(counts.items())
            ],
            "histograms": [
                {
                    "name": name.value,
                    "tier": tier,
                    "count": sum(d.classes),
                    "sum": d.total,
                    "buckets": [
                        list(pair) for pair in zip((*d.bounds, None), d.classes, strict=True)
                    ],
                }
                for (name, tier), d in sorted(durations.items(), key=lambda item: item[0])
            ],
        }

    def prometheus(self) -> str:
        """Return the counts so far, in the text format of Prometheus."""
        return text_format(_counted([_Row((), *self._copy(), None, None)]))

    def _copy(
        self,
    ) -> tuple[
        dict[tuple[CounterName, str, str], int], dict[tuple[HistogramName, str], _Durations]
    ]:
        # Without the lock: a scrape that waited for it would wait for every thread that counts, and
        # each of these for its turn of the interpreter. A copy of a dictionary or of a list is one
        # step of it; the sum of a histogram that is being updated may lack a value that the classes
        # have.
        durations = {}
        for key, source in list(self._durations.items()):
            durations[key] = copied = _Durations(source.bounds)
            copied.classes, copied.total = source.classes.copy(), source.total
        return dict(self._counts), durations


def render(engine: Counted | Mapping[str, Counted], totals: Totals | None = None) -> str:
    """Return all metrics of *engine* in Prometheus's format: totals, and its present state.

    Several engines of one process are given by name, and distinguished by the label ``engine``.
    Without *totals* those of the telemetry that the engine was built with are used.

    Owners of leases and pins are requests, so they are summed up: their names would make a new time
    series each.
    """
    return text_format(families(engine, totals))


@dataclass(frozen=True, slots=True)
class _Row:
    """One engine at one moment."""

    labels: Labels
    counts: Mapping[tuple[CounterName, str, str], int]
    durations: Mapping[tuple[HistogramName, str], _Durations]
    health: Health | None
    info: EngineInfo | None
    """``None`` if the telemetry is the host's own: then totals are not known."""

    @property
    def tiers(self) -> Sequence[TierHealth]:
        return () if self.health is None else self.health.tiers


def families(engine: Counted | Mapping[str, Counted], totals: Totals | None = None) -> list[Family]:
    """Return all metrics of *engine*, or of several by name, for any format."""
    engines = engine if isinstance(engine, Mapping) else {"": engine}
    rows = []
    for name, each in engines.items():
        source = each.telemetry if totals is None else totals
        if isinstance(source, Totals):
            info = replace(source.info, engine=name or source.info.engine)
            labels = (("engine", info.engine), ("rank", info.rank), ("role", info.role))
            rows.append(_Row(labels, *source._copy(), each.health(), info))
        else:
            rows.append(_Row((("engine", name),), {}, {}, each.health(), None))
    return [*_counted([row for row in rows if row.info is not None]), *_states(rows)]


def _counted(rows: Sequence[_Row]) -> list[Family]:
    """Return totals and histograms, including those that are zero if the tiers are known."""
    made = []
    for counter in CounterName:
        samples = []
        for row in rows:
            known = known_series(counter, [t.name for t in row.tiers]) if row.health else ()
            series = dict.fromkeys(known, 0)
            series |= {key[1:]: n for key, n in row.counts.items() if key[0] == counter}
            samples += [
                Sample((*row.labels, ("tier", tier), (reason_label(counter), reason)), amount)
                for (tier, reason), amount in sorted(series.items())
            ]
        made.append(Family(f"hexkv_{counter}_total", "counter", HELP[counter], samples))
    for histogram in HistogramName:
        samples = []
        nothing = _Durations(bounds(histogram))
        for row in rows:
            tiers = [t.name for t in row.tiers] if histogram in TIERED else [""]
            spread = dict.fromkeys(tiers if row.health else (), nothing)
            spread |= {key[1]: d for key, d in row.durations.items() if key[0] == histogram}
            for tier, durations in sorted(spread.items()):
                samples += _histogram((*row.labels, ("tier", tier)), durations)
        made.append(Family(f"hexkv_{histogram}", "histogram", HELP[histogram], samples))
    return made


def _histogram(labels: Labels, durations: _Durations) -> list[Sample]:
    reached = [*accumulate(durations.classes)]
    named = [*map(str, durations.bounds), "+Inf"]
    samples = [
        Sample((*labels, ("le", bound)), count, "_bucket")
        for bound, count in zip(named, reached, strict=True)
    ]
    samples.append(Sample(labels, durations.total, "_sum"))
    samples.append(Sample(labels, reached[-1], "_count"))
    return samples


def _states(rows: Sequence[_Row]) -> list[Family]:
    """Return the present state of engines and tiers."""

    def engines(
        name: str, text: str, get: Callable[[Health], float | None], kind: str = "gauge"
    ) -> Family:
        samples = [
            Sample(row.labels, value)
            for row in rows
            if row.health is not None and (value := get(row.health)) is not None
        ]
        return Family(f"hexkv_{name}", kind, text, samples)

    def tiers(
        name: str, text: str, get: Callable[[TierHealth], float | None], kind: str = "gauge"
    ) -> Family:
        samples = [
            Sample((*row.labels, ("tier", tier.name)), value)
            for row in rows
            for tier in row.tiers
            if (value := get(tier)) is not None
        ]
        return Family(f"hexkv_{name}", kind, text, samples)

    lanes = [
        Sample((*row.labels, ("tier", tier.name), ("lane", lane)), BREAKER[state])
        for row in rows
        for tier in row.tiers
        for lane, state in (("read", tier.reading), ("write", tier.writing))
    ]
    tenants = [
        Sample((*row.labels, ("tier", tier.name), ("tenant", tenant)), used)
        for row in rows
        for tier in row.tiers
        for tenant, used in sorted(tier.tenants.items())
    ]
    return [
        tiers("tier_chunks", "Chunks on a tier.", lambda t: t.chunks),
        tiers("tier_used_bytes", "Bytes on a tier.", lambda t: t.used_bytes),
        tiers("tier_budget_bytes", "Bytes that a tier may hold.", lambda t: t.budget_bytes),
        tiers(
            "tier_queued_bytes",
            "Bytes of reads and writes that wait or run.",
            lambda t: t.queued_bytes,
        ),
        Family(
            "hexkv_tier_breaker",
            "gauge",
            "State of a lane's breaker: 0 closed, 1 half open, 2 open.",
            lanes,
        ),
        tiers(
            "tier_indexing",
            "Whether what a tier holds is still being learnt.",
            lambda t: int(t.indexing),
        ),
        tiers(
            "tier_full", "Whether a store lacks room that its budget has.", lambda t: int(t.full)
        ),
        tiers("tier_failures_total", "Calls that failed.", lambda t: t.failures, "counter"),
        Family("hexkv_tenant_used_bytes", "gauge", "Bytes in a tenant's share of a tier.", tenants),
        engines("pool_bytes", "Bytes of the pool.", lambda h: h.pool_bytes),
        engines("pool_held_bytes", "Bytes of blocks in use.", lambda h: h.pool_held_bytes),
        engines("leases", "Leases on blocks.", lambda h: sum(h.leases.values())),
        engines("pinned_chunks", "Pins, summed over tiers.", lambda h: sum(h.pins.values())),
        engines("prefetches", "Prefetches that no retrieve has picked up.", lambda h: h.prefetches),
        engines("open", "Whether the engine takes calls.", lambda h: int(h.state == "open")),
        engines(
            "directory_up",
            "Whether the directory gets this cache's content.",
            lambda h: None if h.directory is None else int(not h.directory),
        ),
        _saved(rows),
        _infos(rows),
    ]


def _saved(rows: Iterable[_Row]) -> Family:
    """Return the time that computing the hit tokens would have taken, if the rate is known."""
    samples = []
    for row in rows:
        if row.info is not None and row.info.compute_rate:
            tokens = sum(n for key, n in row.counts.items() if key[0] == CounterName.HIT_TOKENS)
            samples.append(Sample(row.labels, tokens / row.info.compute_rate))
    text = "Time that computing the tokens that were hit would have taken."
    return Family("hexkv_saved_seconds_total", "counter", text, samples)


def _infos(rows: Iterable[_Row]) -> Family:
    samples = []
    for row in rows:
        if (info := row.info) is not None:
            about = [
                ("model", info.model),
                ("revision", info.revision),
                ("layout", info.layout),
                ("version", info.version),
            ]
            samples.append(Sample((*row.labels, *about), 1))
    return Family("hexkv_engine_info", "gauge", "What an engine caches the KV of.", samples)
