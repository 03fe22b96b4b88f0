"""``python -m benchmarks.policies.stacked``: compressed memory behind plain, on unseen traces.

Memory of one size as it is, beside a half of it kept encoded at several ratios, under LRU. Traces
are families of :mod:`benchmarks.policies.families`, and a recorded one (``--trace``, Mooncake's).
Differences are relative to the plain tier; intervals are of their mean over the seeds, by
bootstrap. Writes ``results/stacked.json``.
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

from benchmarks.policies.families import FAMILIES, trace
from hexkv.core.policies import LRU
from hexkv.plan.replay import replay
from hexkv.plan.stacked import Below, replay_stacked
from hexkv.plan.trace import TracedPrompt, read_mooncake
from hexkv.plan.workloads import footprint

RATIOS = (1.5, 2.0, 4.0)
"""Of zstd, int8 and the coarser ones, about, as ``results/serdes.json`` has them."""

SHARES = (0.02, 0.1, 0.35)
"""Memory, of the footprint, where some of it is to be compressed."""

SAMPLES = 10_000
OUTPUT = Path(__file__).resolve().parents[1] / "results" / "stacked.json"


class Job(NamedTuple):
    """One trace."""

    family: str
    seed: int
    requests: int
    recorded: Path | None = None


def _requests(job: Job) -> list[TracedPrompt]:
    if job.recorded is None:
        return trace(job.family, job.requests, job.seed)
    with job.recorded.open("rb") as lines:
        return list(read_mooncake(lines))


def compressed(job: Job) -> list[dict[str, float]]:
    """Hit rates of plain memory, and of one whose half is compressed, for each of SHARES."""
    requests = _requests(job)
    chunks = footprint(requests)
    rows = []
    for share in SHARES:
        size = int(chunks * share)
        row = {"share": share, "plain": replay(requests, LRU, size).hit_rate}
        for ratio in RATIOS:
            below = Below(int(size / 2 * ratio))
            row[str(ratio)] = replay_stacked(requests, LRU, size - size // 2, below).hit_rate
        rows.append({name: round(value, 5) for name, value in row.items()})
    return rows


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and where it lies for 95 % of bootstrap samples."""
    dice = Random(0)
    count = len(ratios)
    means = sorted(sum(dice.choices(ratios, k=count)) / count for _ in range(SAMPLES))
    return sum(ratios) / count, means[SAMPLES // 40], means[-SAMPLES // 40 - 1]


def _summary(runs: Sequence[list[dict[str, float]]]) -> list[dict[str, object]]:
    """At each place of the rows, the mean relative differences, with their intervals."""
    found: list[dict[str, object]] = []
    for at, first in enumerate(runs[0]):
        ratios = {
            str(ratio): [run[at][str(ratio)] / run[at]["plain"] - 1 for run in runs]
            for ratio in RATIOS
        }
        spread = {name: [round(x, 4) for x in interval(each)] for name, each in ratios.items()}
        found.append({"share": first["share"], **spread})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies.stacked", description=__doc__
    )
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--trace", type=Path, help="in Mooncake's format")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    jobs = [Job(name, seed, asked.requests) for name in asked.families for seed in asked.seeds]
    if asked.trace is not None:
        jobs.append(Job(asked.trace.stem, 0, 0, asked.trace))
    results: dict[str, dict[int, list[dict[str, float]]]] = {}
    with ProcessPoolExecutor(asked.processes) as pool:
        under_way = {pool.submit(compressed, job): job for job in jobs}
        for done in as_completed(under_way):
            job = under_way[done]
            results.setdefault(job.family, {})[job.seed] = done.result()
    found = {
        family: {
            "compared": _summary([runs[seed] for seed in sorted(runs)]),
            "runs": {str(seed): runs[seed] for seed in sorted(runs)},
        }
        for family, runs in sorted(results.items())
    }
    for family, each in found.items():
        for row in each["compared"]:
            print(family, json.dumps(row), file=sys.stderr)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hexkv": version("hexkv"),
        "requests": asked.requests,
        "compressed": found,
    }
    asked.output.write_text(json.dumps(report, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
