"""hexkv's numbers on the ``/metrics`` that SGLang serves (``--enable-metrics``).

SGLang collects from files that ``prometheus_client`` writes in each of its processes, so whatever
is counted with that library in a scheduler process is served, too.
"""

from __future__ import annotations

from hexkv.plugins.telemetry import BUCKETS, HELP, Totals
from hexkv.ports import CounterName, HistogramName, Telemetry


def telemetry(arguments: object | None, rank: int) -> Telemetry | None:
    """What the engine of *rank* tells its numbers to; ``None`` where SGLang serves none."""
    return Published(rank) if getattr(arguments, "enable_metrics", False) else None


class Published(Totals):
    """Totals that SGLang serves as ``hexkv_*``, by rank and tier, under the usual names."""

    def __init__(self, rank: int) -> None:
        """Take the numbers up where an engine before in this process left them."""
        # SGLang says in the environment where the files lie; the library looks once, at import.
        import prometheus_client as client

        super().__init__()
        self._rank = str(rank)
        # No registry: a backend that is attached again would register its names twice.
        self._sums = {
            name: client.Counter(
                f"hexkv_{name}", HELP[name], ("rank", "tier", "reason"), registry=None
            )
            for name in CounterName
        }
        self._spreads = {
            name: client.Histogram(
                f"hexkv_{name}", HELP[name], ("rank", "tier"), buckets=BUCKETS, registry=None
            )
            for name in HistogramName
        }

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        super().count(counter, amount, tier=tier, reason=reason)
        self._sums[counter].labels(self._rank, tier, reason).inc(amount)

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        super().observe(histogram, seconds, tier=tier)
        self._spreads[histogram].labels(self._rank, tier).observe(seconds)
