"""``python -m benchmarks.stacked``: memory and a second tier, on traces of unseen kinds.

*Compressed*: memory of one size as it is, beside a half of it kept encoded at several ratios.
*Write back*: a disk behind memory under several ``min_reuse``: the bytes written to it, per chunk
that was found there only, and the share of the tokens found. Both of families of
:mod:`benchmarks.families`, and of a recorded trace (``--trace``, in Mooncake's format), under LRU.
Differences are relative to the plain tier, or to writing everything; intervals are of their mean
over the seeds, by bootstrap. Writes ``results/stacked.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.families import FAMILIES, trace
from hexkv.core.policies import LRU
from hexkv.plan.replay import replay
from hexkv.plan.stacked import Below, replay_stacked
from hexkv.plan.trace import TracedPrompt, read_mooncake
from hexkv.plan.workloads import footprint

RATIOS = (1.5, 2.0, 4.0)
"""Of zstd, int8 and the coarser ones, about, as ``results/serdes.json`` has them."""

SHARES = (0.02, 0.1, 0.35)
"""Memory, of the footprint, where some of it is to be compressed."""

LEAST = (0.0, 0.05, 0.1, 0.2, 0.4)
SAMPLES = 10_000
OUTPUT = Path(__file__).resolve().parent / "results" / "stacked.json"


class Job(NamedTuple):
    """One trace."""

    family: str
    seed: int
    requests: int
    recorded: Path | None = None
    memory: float = 0.03
    """Where chunks are written back: memory, of the footprint; and the disk."""

    disk: float = 0.3


@cache
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


def write_back(job: Job) -> list[dict[str, float]]:
    """What each of LEAST finds and writes."""
    requests = _requests(job)
    chunks = footprint(requests)
    rows = []
    for least in LEAST:
        below = Below(int(chunks * job.disk), min_reuse=least)
        done = replay_stacked(requests, LRU, int(chunks * job.memory), below)
        found = done.below_tokens // 512
        rows.append(
            {
                "min_reuse": least,
                "hit_rate": round(done.hit_rate, 5),
                "written": done.written,
                "found": found,
                "written_per_hit": round(done.written / max(1, found), 3),
            }
        )
    return rows


WORK = {"compressed": compressed, "write_back": write_back}


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and where it lies for 95 % of bootstrap samples."""
    dice = Random(0)
    count = len(ratios)
    means = sorted(sum(dice.choices(ratios, k=count)) / count for _ in range(SAMPLES))
    return sum(ratios) / count, means[SAMPLES // 40], means[-SAMPLES // 40 - 1]


def _summary(kind: str, runs: Sequence[list[dict[str, float]]]) -> list[dict[str, object]]:
    """At each place of the rows, the mean relative differences, with their intervals."""
    found: list[dict[str, object]] = []
    for at, first in enumerate(runs[0]):
        rows = [run[at] for run in runs]
        if kind == "compressed":
            pairs = {str(ratio): ("plain", str(ratio)) for ratio in RATIOS}
            base, place = rows, {"share": first["share"]}
        else:
            pairs = {name: (name, name) for name in ("hit_rate", "written", "written_per_hit")}
            base, place = [run[0] for run in runs], {"min_reuse": first["min_reuse"]}
        ratios = {
            name: [row[new] / old[was] - 1 for row, old in zip(rows, base, strict=True)]
            for name, (was, new) in pairs.items()
        }
        found.append(
            place | {name: [round(x, 4) for x in interval(each)] for name, each in ratios.items()}
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stacked", description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(WORK), choices=list(WORK))
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--memory", type=float, default=0.03, help="of the footprint")
    parser.add_argument("--disk", type=float, default=0.3, help="of the footprint")
    parser.add_argument("--trace", type=Path, help="in Mooncake's format")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    sizes = asked.memory, asked.disk
    jobs = [
        Job(family, seed, asked.requests, None, *sizes)
        for family in asked.families
        for seed in asked.seeds
    ]
    if asked.trace is not None:
        jobs.append(Job(asked.trace.stem, 0, 0, asked.trace, *sizes))
    results: dict[str, dict[str, dict[int, list[dict[str, float]]]]] = {kind: {} for kind in WORK}
    with ProcessPoolExecutor(asked.processes) as pool:
        under_way = {
            pool.submit(WORK[kind], job): (kind, job) for job in jobs for kind in asked.only
        }
        for done in as_completed(under_way):
            kind, job = under_way[done]
            results[kind].setdefault(job.family, {})[job.seed] = done.result()
    report: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hexkv": version("hexkv"),
        "requests": asked.requests,
        "memory_and_disk": sizes,
    }
    for kind in asked.only:
        report[kind] = {
            family: {
                "compared": _summary(kind, [runs[seed] for seed in sorted(runs)]),
                "runs": {str(seed): runs[seed] for seed in sorted(runs)},
            }
            for family, runs in sorted(results[kind].items())
        }
        for family in sorted(results[kind]):
            for row in report[kind][family]["compared"]:  # type: ignore[index]
                print(kind, family, json.dumps(row), file=sys.stderr)
    asked.output.write_text(json.dumps(report, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
