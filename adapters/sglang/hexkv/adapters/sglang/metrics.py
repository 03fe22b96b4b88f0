"""hexkv's numbers on the ``/metrics`` that SGLang serves (``--enable-metrics``).

SGLang collects from files that ``prometheus_client`` writes in each of its processes, so all that
is counted with that library in a scheduler process is served, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from weakref import ref

from hexkv.adapters.sglang.identity.weights import REPLACED
from hexkv.plugins.observing.families import HELP, TIERED, bounds, known_series, reason_label
from hexkv.plugins.observing.telemetry import BREAKER, Totals
from hexkv.ports import CounterName, Health, HexKVError, HistogramName, Telemetry

if TYPE_CHECKING:
    from hexkv.ports import PrefixCache

log = logging.getLogger("sglang.hexkv")

_REASONS = (REPLACED,)
"""Why a cache is off: each has a series from the start."""

_PAUSE = 1.0
"""Seconds between two readings of the tiers' state."""


def telemetry(arguments: object | None, rank: int) -> Telemetry | None:
    """The telemetry of *rank*'s engine; ``None`` where SGLang serves no numbers."""
    return ServedTotals(rank) if getattr(arguments, "enable_metrics", False) else None


class ServedTotals(Totals):
    """Totals that SGLang serves as ``hexkv_*``, by rank and tier, under the usual names."""

    def __init__(self, rank: int) -> None:
        """Continue the numbers of a former engine in this process."""
        # SGLang names the files' folder in the environment; the library reads it once, at import.
        import prometheus_client as client

        super().__init__()
        self._rank = str(rank)
        # No registry: a backend that is attached again would register its names twice.
        self._sums = {
            name: client.Counter(
                f"hexkv_{name}", HELP[name], ("rank", "tier", reason_label(name)), registry=None
            )
            for name in CounterName
        }
        self._spreads = {
            name: client.Histogram(
                f"hexkv_{name}", HELP[name], ("rank", "tier"), buckets=bounds(name), registry=None
            )
            for name in HistogramName
        }

        def gauge(name: str, text: str, *labels: str) -> Any:
            return client.Gauge(
                f"hexkv_{name}",
                text,
                ("rank", *labels),
                registry=None,
                multiprocess_mode="mostrecent",
            )

        self._sizes = {
            "used_bytes": gauge("tier_used_bytes", "Bytes on a tier.", "tier"),
            "budget_bytes": gauge("tier_budget_bytes", "Bytes that a tier may hold.", "tier"),
            "queued_bytes": gauge("tier_queued_bytes", "Bytes that wait or are moved.", "tier"),
        }
        self._off = gauge("off", "1 while the host does not use the cache, by reason.", "reason")
        for why in _REASONS:
            self._off.labels(self._rank, why).set(0)
        text = "State of a lane's breaker: 0 closed, 1 half open, 2 open."
        self._breaker = gauge("tier_breaker", text, "tier", "lane")
        # To look a child up by its labels takes as long as all the rest.
        self._counters: dict[tuple[CounterName, str, str], Any] = {}
        self._histograms: dict[tuple[HistogramName, str], Any] = {}

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        super().count(counter, amount, tier=tier, reason=reason)
        child = self._counters.get((counter, tier, reason))
        if child is None:
            child = self._sums[counter].labels(self._rank, tier, reason)
            self._counters[counter, tier, reason] = child
        child.inc(amount)

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        super().observe(histogram, seconds, tier=tier)
        child = self._histograms.get((histogram, tier))
        if child is None:
            child = self._spreads[histogram].labels(self._rank, tier)
            self._histograms[histogram, tier] = child
        child.observe(seconds)

    def begin(self, tiers: Sequence[str]) -> None:
        """Create every series of these tiers, and of the known reasons."""
        for counter in CounterName:
            for tier, reason in known_series(counter, tiers):
                self.count(counter, 0, tier=tier, reason=reason)
        for histogram in HistogramName:
            for tier in tiers if histogram in TIERED else ("",):
                self._histograms[histogram, tier] = self._spreads[histogram].labels(
                    self._rank, tier
                )

    def off(self, why: str) -> None:
        """Show that the host does not use the cache, and why."""
        self._off.labels(self._rank, why).set(1)

    def show(self, health: Health) -> None:
        """Show how the tiers are."""
        for tier in health.tiers:
            for name, sizes in self._sizes.items():
                size = getattr(tier, name)
                if size is not None:
                    sizes.labels(self._rank, tier.name).set(size)
            for lane, state in (("read", tier.reading), ("write", tier.writing)):
                self._breaker.labels(self._rank, tier.name, lane).set(BREAKER[state])


def show_off(engine: PrefixCache, why: str) -> None:
    """Show that *engine* is off and why, if SGLang serves that."""
    if isinstance(engine.telemetry, ServedTotals):
        engine.telemetry.off(why)


def publish(engine: PrefixCache) -> None:
    """Show how the tiers of *engine* are from now on, until it is closed, if SGLang serves that."""
    sink = engine.telemetry
    if isinstance(sink, ServedTotals):
        health = engine.health()
        sink.begin([tier.name for tier in health.tiers])
        sink.show(health)
        Thread(target=_go_on, args=(ref(engine), sink), name="hexkv-metrics", daemon=True).start()


def _go_on(engine: ref[PrefixCache], sink: ServedTotals) -> None:
    """Show the tiers again and again. Does not keep an engine that is not used elsewhere."""
    pause = Event()
    while not pause.wait(_PAUSE):
        here = engine()
        if here is None:
            return
        try:
            health = here.health()
        except HexKVError as error:
            log.debug("the tiers' health cannot be shown: %s", error)
            return
        sink.show(health)
        if health.state != "open":
            return
        del here
