"""``python -m benchmarks.unseen``: policies on traces that they were not made for, beside LRU.

Every family of :mod:`benchmarks.families`, every seed, every share of the trace's footprint; each
policy beside LRU on the same trace. An interval is of the mean over the seeds of the relative
difference, by 10,000 bootstrap samples of the seeds. A policy *loses* where 95 % of them lie below
nought, and *wins* where they lie above. Writes ``results/unseen.json``. Hit rates do not depend on
the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.families import FAMILIES, trace
from hexkv.core.policies import POLICIES
from hexkv.plan.replay import replay, unlimited
from hexkv.plan.workloads import footprint

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8)
SEEDS = range(1, 11)
REQUESTS = 4000
SAMPLES = 10_000
OUTPUT = Path(__file__).resolve().parent / "results" / "unseen.json"


class Job(NamedTuple):
    """One trace, for several policies and sizes."""

    family: str
    seed: int
    requests: int
    policies: tuple[str, ...]


def judge(job: Job) -> dict[str, object]:
    """Token hit rates of each policy, in the order of :data:`SHARES`."""
    requests = trace(job.family, job.requests, job.seed)
    chunks = footprint(requests)
    rates = {
        name: [
            round(replay(requests, POLICIES[name], max(1, int(chunks * share))).hit_rate, 5)
            for share in SHARES
        ]
        for name in job.policies
    }
    most = round(unlimited(requests).hit_rate, 5)
    return {"seed": job.seed, "chunks": chunks, "unlimited": most, "rates": rates}


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and where it lies for 95 % of bootstrap samples."""
    dice = Random(0)
    count = len(ratios)
    means = sorted(sum(dice.choices(ratios, k=count)) / count for _ in range(SAMPLES))
    return sum(ratios) / count, means[SAMPLES // 40], means[-SAMPLES // 40 - 1]


def compare(runs: Sequence[dict[str, object]], policy: str) -> list[dict[str, object]]:
    """At each size, how much more than LRU *policy* finds, relatively."""
    rates = [run["rates"] for run in runs]
    found: list[dict[str, object]] = []
    for at, share in enumerate(SHARES):
        ratios = [each[policy][at] / each["lru"][at] - 1 for each in rates]  # type: ignore[index]
        mean, low, high = interval(ratios)
        verdict = "loses" if high < 0 else "wins" if low > 0 else "equal"
        lru = sum(each["lru"][at] for each in rates) / len(rates)  # type: ignore[index]
        found.append(
            {
                "share": share,
                "lru": round(lru, 4),
                "more": round(mean, 4),
                "interval": [round(low, 4), round(high, 4)],
                "least": round(min(ratios), 4),
                "verdict": verdict,
            }
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unseen", description=__doc__)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--policies", nargs="+", default=["arc", "adaptive"])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    policies = ("lru", *asked.policies)
    jobs = [
        Job(family, seed, asked.requests, policies)
        for family in asked.families
        for seed in asked.seeds
    ]
    runs: dict[str, list[dict[str, object]]] = {family: [] for family in asked.families}
    with ProcessPoolExecutor(asked.processes) as pool:
        under_way = {pool.submit(judge, job): job for job in jobs}
        for done in as_completed(under_way):
            runs[under_way[done].family].append(done.result())
    families = {}
    for family, found in runs.items():
        found.sort(key=lambda run: run["seed"])  # type: ignore[arg-type, return-value]
        families[family] = {
            "compared": {name: compare(found, name) for name in asked.policies},
            "runs": found,
        }
        for name in asked.policies:
            for row in families[family]["compared"][name]:  # type: ignore[index]
                print(family, name, json.dumps(row), file=sys.stderr)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hexkv": version("hexkv"),
        "requests": asked.requests,
        "seeds": asked.seeds,
        "families": families,
    }
    asked.output.write_text(json.dumps(report, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
