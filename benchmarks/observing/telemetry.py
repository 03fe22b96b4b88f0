"""``python -m benchmarks.observing.telemetry``: the cost of an event, a step, a call, a scrape.

CPU time, in turns with the same calls of a telemetry that does nothing, on however busy a machine.
How long the parts of a call are together, beside the call, is measured by the clock.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.rig.machine import load, versions
from benchmarks.rig.measure import Spread, must
from hexkv.adapters.admin.chrome_trace import chrome_trace
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.requests.accounts import Laps
from hexkv.core.runtime import StepRing
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load as load_config
from hexkv.plugins.observing.telemetry import Totals, render
from hexkv.ports import CounterName, DType, HistogramName, KVLayout, Namespace, Reason

_GOALS = {"event": 1e-6, "step": 0.2e-6, "scrape": 5e-3}
"""CPU seconds: of one more event than with no telemetry, of a step in the ring, of a scrape."""

_TIERS = 5
_LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=8)


class Nothing:
    """Telemetry that drops its reports."""

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        """See :class:`hexkv.ports.Telemetry`."""

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        """See :class:`hexkv.ports.Telemetry`."""


def _cpu(work: Callable[[], object], times: int) -> float:
    """CPU seconds of one of *times* calls."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def _more(
    work: Callable[[], object], bare: Callable[[], object], times: int, rounds: int
) -> Spread:
    """CPU seconds that *work* takes more than *bare*, in turns."""
    return Spread.of([_cpu(work, times) - _cpu(bare, times) for _ in range(rounds)])


def events(rounds: int) -> dict[str, Spread]:
    """One more count, one more duration, and steps."""
    totals, nothing, ring, clock = Totals(), Nothing(), StepRing(), SystemClock()

    def call() -> None:
        laps = Laps(clock)
        for part in ("name", "match", "read", "copy"):
            laps.mark((part, "", laps.now()))
        laps.end(ring, "retrieve", "call-1", ())

    times = 20_000
    return {
        "count": _more(
            lambda: totals.count(CounterName.MISSES, 3, reason=Reason.ABSENT),
            lambda: nothing.count(CounterName.MISSES, 3, reason=Reason.ABSENT),
            times,
            rounds,
        ),
        "duration": _more(
            lambda: totals.observe(HistogramName.READ, 0.013, tier="disk"),
            lambda: nothing.observe(HistogramName.READ, 0.013, tier="disk"),
            times,
            rounds,
        ),
        "step in the ring": _more(
            lambda: ring.add(("get", "disk/read", 1.0, 0.1, "disk", "", 0.0, 1, "")),
            lambda: None,
            times,
            rounds,
        ),
        "call of five parts": _more(call, lambda: None, times // 10, rounds),
    }


def scrape(folder: Path, rounds: int) -> dict[str, object]:
    """A page of an engine with five tiers that have been used, and how well parts add up."""
    names = [f"disk{n}" for n in range(1, _TIERS)]
    disks = [
        {"store": "disk", "name": name, "settings": {"root": str(folder / name)}} for name in names
    ]
    settings = {"pool": {"bytes": "4MiB"}, "chunk": {"size": 16}}
    loaded = load_config(None, {}, settings | {"tiers": [{"store": "memory"}, *disks]})
    tokens = list(range(16 * 16))
    with build(loaded, Namespace("m", _LAYOUT)) as engine:
        parts = []
        for _ in range(50):
            engine.store(tokens, HeapKV(_LAYOUT, len(tokens)).compute(tokens))
            engine.clear(tokens, tiers=["memory"])
            began = time.perf_counter()
            got = engine.retrieve(tokens, HeapKV(_LAYOUT, len(tokens)))
            took = time.perf_counter() - began
            must(got.hit_tokens == len(tokens), "not everything was loaded")
            (*_, whole) = engine.steps()
            mine = [s.seconds for s in engine.steps() if s.call == whole.call and not s.key]
            parts.append(sum(mine) / took)
        engine.flush()
        page = render(engine)
        times = Spread.of([_cpu(lambda: render(engine), 20) for _ in range(rounds)])
        picture = _cpu(lambda: json.dumps(chrome_trace(engine.steps())), 5)
    series = sum(1 for line in page.splitlines() if not line.startswith("#"))
    return {
        "tiers": _TIERS,
        "series": series,
        "bytes": len(page),
        "cpu_seconds": asdict(times),
        "parts of a call, of its time from outside": asdict(Spread.of(parts)),
        "picture_cpu_seconds": picture,
    }


def main() -> None:
    """Measure, and print JSON."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=15)
    rounds = asked.parse_args().rounds
    began = load()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "goals": _GOALS,
            "events": {name: asdict(spread) for name, spread in events(rounds).items()},
            "scrape": scrape(Path(folder), rounds),
            "load": [began, load()],
            "versions": versions(),
        }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
