"""``python -m benchmarks.policies.judged TRACE...``: eviction on requests that chose no policy.

The split, written before anything was measured. Each recorded trace, in Mooncake's format, is cut
into six contiguous parts with equal numbers of requests. Parts 1, 3 and 5 *choose*; parts 2, 4 and
6, and the whole trace, only *judge*. Of generated requests (``benchmarks.policies.families`` and
``hexkv.plan.workloads``) seed 11 chooses and seed 111 judges. Each part is replayed in four orders:

recorded     as it is.
reversed     the last request first.
interleaved  the two halves alternately: twice as many conversations at a time.
shuffled     within each 200 requests, at random.

Sizes are shares of the footprint. A policy is *kept* beside LRU and ARC if it is nowhere among the
judges more than 0.5 % below the better of the two, and 2 % above it somewhere with a hit rate above
5 %. A difference of less than two chunks is none. Of several simple policies the one with the
highest mean share of the better one, over the places that choose, takes part. S3-FIFO is a
candidate. Writes ``results/judged.json``, or adds to it. Hit rates do not depend on the machine.

``--min-reuse`` measures that setting of a disk behind memory, on the parts that judge, each under
several namings of its chunks: the setting learns from a sample of names. It *helps* at a value and
a size if in all parts of a trace and all namings at least 10 % fewer chunks are written, and at
most 0.5 % fewer tokens found.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.policies.families import FAMILIES, trace
from hexkv.core.policies import POLICIES
from hexkv.core.policies._order import Order
from hexkv.plan.replay import optimal, replay
from hexkv.plan.stacked import Below, replay_stacked
from hexkv.plan.trace import TracedPrompt, read_mooncake
from hexkv.plan.workloads import WORKLOADS, footprint, synthetic
from hexkv.ports import ChunkKey, Policy

PARTS = 6
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.55)
WINDOW = 200
CHOOSE, JUDGE = 11, 111
"""Seeds of generated requests."""

REQUESTS = 2000
"""Of each generated trace."""

LOSS, GAIN, MATTERS = 0.005, 0.02, 0.05
OUTPUT = Path(__file__).resolve().parents[1] / "results" / "judged.json"


class S3FIFO:
    """Three queues: new chunks, those used there, and the names of new ones that were evicted.

    After Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), with the
    paper's tenth for new chunks. Within one request the last chunk is the oldest. It reorders its
    queues in :meth:`victims`, which the port excludes; the index evicts the victims it asks for.
    """

    def __init__(self) -> None:
        self._small, self._main, self._ghosts = Order(), Order(), Order()
        self._uses: dict[ChunkKey, int] = {}
        self._last: ChunkKey | None = None
        self._most = 0

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        parent = after if after == self._last else None
        for key in keys:
            queue = self._small
            if key in self._ghosts:
                self._ghosts.remove(key)
                queue = self._main
            queue.put_below(parent if parent is not None and parent in queue else None, key)
            self._uses[key] = 0
            self._last = parent = key
        self._most = max(self._most, len(self._uses))

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        self._uses.update((key, min(3, self._uses[key] + 1)) for key in keys)

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        del self._uses[key]
        if key in self._main:
            self._main.remove(key)
            return
        self._small.remove(key)
        if evicted:
            self._ghosts.put_below(None, key)
            if len(self._ghosts) > 0.9 * self._most:
                self._ghosts.remove(next(iter(self._ghosts)))

    def victims(self) -> Iterator[ChunkKey]:
        small, main, uses = self._small, self._main, self._uses
        new, used = next(iter(small), None), next(iter(main), None)
        left, others = len(small), len(main)
        while left or others:
            if new is not None and (left > 0.1 * self._most or not others):
                key, new, left = new, small._newer[new], left - 1
                if uses[key] <= 1:
                    yield key
                    continue
                small.remove(key)
                uses[key], others = 0, others + 1
            else:
                assert used is not None
                key, used = used, main._newer[used]
                if not uses[key]:
                    others -= 1
                    yield key
                    continue
                main.remove(key)
                uses[key] -= 1
            main.put_below(None, key)
            used = key if used is None else used


DISKS = ((0.01, 0.1), (0.03, 0.3), (0.1, 0.6))
"""Memory and disk, of the footprint."""

LEAST = (0.1, 0.2, 0.4)
NAMINGS = 4
FEWER_WRITES, FEWER_HITS = 0.1, 0.005


def written_back(job: Job) -> list[dict[str, object]]:
    """Of each disk and value of ``min_reuse``, writes and hits beside a disk that takes all."""
    plain = requests_of(job)
    chunks, rows = footprint(plain), []
    for memory, disk in DISKS:
        sizes = int(chunks * memory), int(chunks * disk)
        base = replay_stacked(plain, POLICIES["lru"], sizes[0], Below(sizes[1]))
        for least in LEAST:
            found = []
            for naming in range(NAMINGS):
                requests = [
                    TracedPrompt(one.tokens, [renamed(key, naming) for key in one.keys])
                    for one in plain
                ]
                below = Below(sizes[1], min_reuse=least)
                done = replay_stacked(requests, POLICIES["lru"], sizes[0], below)
                writes = done.written / max(1, base.written)
                hits = done.hit_tokens / max(1, base.hit_tokens)
                found.append((round(writes - 1, 4), round(hits - 1, 4)))
            spans = [[min(column), max(column)] for column in zip(*found, strict=True)]
            rows.append(
                {
                    "trace": Path(job.trace).stem,
                    "part": job.part,
                    "memory_and_disk": [memory, disk],
                    "min_reuse": least,
                    "hit_rate": round(base.hit_rate, 5),
                    "writes": spans[0],
                    "hits": spans[1],
                    "helps": spans[0][1] <= -FEWER_WRITES and spans[1][0] >= -FEWER_HITS,
                }
            )
    return rows


def renamed(key: ChunkKey, naming: int) -> ChunkKey:
    """Return *key* as another namespace would have it."""
    return ChunkKey(key[:16] + sha256(bytes([naming]) + key).digest())


CANDIDATES: dict[str, Callable[[], Policy]] = {**POLICIES, "s3-fifo": S3FIFO}


class Job(NamedTuple):
    """Some requests in one order, for all policies and sizes."""

    trace: str
    """A recorded trace's path, or the name of a generated one."""

    part: int
    """From 1, of a recorded trace; 0: the whole. The seed of a generated one."""

    order: str
    policies: tuple[str, ...]

    @property
    def judges(self) -> bool:
        return self.part % 2 == 0 if self.part <= PARTS else self.part == JUDGE


def requests_of(job: Job) -> list[TracedPrompt]:
    """The requests of *job*, in its order."""
    if job.trace in FAMILIES:
        found = trace(job.trace, REQUESTS, job.part)
    elif job.trace.removeprefix("workload ") in WORKLOADS:
        found = synthetic(job.trace.removeprefix("workload "), REQUESTS, job.part)
    else:
        with Path(job.trace).open("rb") as lines:
            found = list(read_mooncake(lines))
        if job.part:
            step = len(found) / PARTS
            found = found[round((job.part - 1) * step) : round(job.part * step)]
    return ORDERS[job.order](found)


def _interleaved(requests: list[TracedPrompt]) -> list[TracedPrompt]:
    half = len(requests) // 2
    return list(chain.from_iterable(zip(requests[:half], requests[half:], strict=False)))


def _shuffled(requests: list[TracedPrompt]) -> list[TracedPrompt]:
    dice, found = Random(0), []
    for start in range(0, len(requests), WINDOW):
        window = requests[start : start + WINDOW]
        dice.shuffle(window)
        found += window
    return found


ORDERS: dict[str, Callable[[list[TracedPrompt]], list[TracedPrompt]]] = {
    "recorded": list,
    "reversed": lambda requests: requests[::-1],
    "interleaved": _interleaved,
    "shuffled": _shuffled,
}


def measure(job: Job) -> list[dict[str, object]]:
    """Token hit rates at each size."""
    requests = requests_of(job)
    chunks = footprint(requests)
    rows: list[dict[str, object]] = []
    for share in SHARES:
        size = max(1, int(chunks * share))
        rates = {
            name: round(replay(requests, CANDIDATES[name], size).hit_rate, 5)
            for name in job.policies
        }
        rows.append(
            {
                "trace": Path(job.trace).stem,
                "part": job.part,
                "order": job.order,
                "judges": job.judges,
                "share": share,
                "hit": round(512 / sum(request.tokens for request in requests), 9),
                "optimal": round(optimal(requests, size).hit_rate, 5),
                "rates": rates,
            }
        )
    return rows


def summary(rows: Sequence[dict], policy: str) -> dict[str, object]:  # type: ignore[type-arg]
    """How *policy* does beside the better of LRU and ARC over *rows*."""
    ratios = []
    for row in rows:
        rates = row["rates"]
        best = max(rates["lru"], rates["arc"])
        if best:
            even = abs(best - rates[policy]) < 2 * row["hit"]
            ratios.append((1.0 if even else rates[policy] / best, best, row))
    worst, _, where = min(ratios, key=lambda found: found[0])
    ahead = [ratio for ratio, best, _ in ratios if best > MATTERS]
    return {
        "places": len(ratios),
        "mean": round(sum(ratio for ratio, _, _ in ratios) / len(ratios), 4),
        "behind": sum(ratio < 1 - LOSS for ratio, _, _ in ratios),
        "ahead": sum(ratio > 1 + GAIN for ratio in ahead),
        "worst": round(worst, 4),
        "worst_at": f"{where['trace']} {where['part']} {where['order']} {where['share']}",
        "best_above_5": round(max(ahead, default=0.0), 4),
        "kept": worst >= 1 - LOSS and max(ahead, default=0.0) >= 1 + GAIN,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies.judged", description=__doc__
    )
    parser.add_argument("traces", nargs="*", help="in Mooncake's format, or generated ones")
    parser.add_argument("--policies", nargs="+", default=list(CANDIDATES), choices=CANDIDATES)
    parser.add_argument("--parts", type=int, nargs="+", help="0: the whole; default: all")
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=ORDERS)
    parser.add_argument("--min-reuse", action="store_true", help="measure that setting only")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    policies = tuple(dict.fromkeys(["lru", "arc", *asked.policies]))
    if asked.min_reuse:
        for name in asked.traces:
            for part in asked.parts or (2, 4, 6):
                for row in written_back(Job(name, part, "recorded", ())):
                    print(json.dumps(row), flush=True)
        return 0
    jobs = []
    for name in asked.traces or [*FAMILIES, *(f"workload {name}" for name in WORKLOADS)]:
        made = name in FAMILIES or name.startswith("workload ")
        parts = asked.parts or ([CHOOSE, JUDGE] if made else range(PARTS + 1))
        # Generated requests have no other order, and the whole of a trace keeps its own.
        jobs += [
            Job(name, part, order, policies)
            for part in parts
            for order in asked.orders
            if order == "recorded" or (part and not made)
        ]
    known = json.loads(asked.output.read_text()) if asked.output.exists() else []
    rows = {tuple(row[name] for name in ("trace", "part", "order", "share")): row for row in known}
    with ProcessPoolExecutor(asked.processes) as pool:
        for found in pool.map(measure, jobs):
            for row in found:
                rows[row["trace"], row["part"], row["order"], row["share"]] = row
    asked.output.write_text("[\n" + ",\n".join(map(json.dumps, rows.values())) + "\n]\n")
    for judges in (False, True):
        print("judge" if judges else "choose")
        for name in CANDIDATES:
            some = [
                row for row in rows.values() if row["judges"] is judges and name in row["rates"]
            ]
            if some and name != "lru":
                print(f"  {name}: {json.dumps(summary(some, name))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
