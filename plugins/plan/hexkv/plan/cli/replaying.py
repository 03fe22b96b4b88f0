"""Traces and records replayed: every policy at every size, in one process or in several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from hexkv.plan.recorded import requests_of
from hexkv.plan.records import read_records
from hexkv.plan.replay import Replay, optimal, replay, unlimited
from hexkv.plan.stacked import Below, Writing, replay_stacked
from hexkv.plan.trace import BadTrace, TracedPrompt, read_mooncake, renamed
from hexkv.plugins.cli.output import installed
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Policy


class Job(NamedTuple):
    """One replay; the policy ``None`` knows the future."""

    policy: str | None
    chunks: int
    ratio: float = 0.0
    """Compression of a half of the memory; 0: none of it is compressed."""

    burst: bool = False
    """True if chunks wait for the compressed half, at the pace of the plan."""

    naming: int = -1
    """One of the namings under which ``min_reuse`` is replayed, from 0; -1: without it."""


class Pace(NamedTuple):
    """How soon requests follow each other, and chunks are written."""

    think: float
    """Seconds between two requests."""

    compute_rate: float
    """Tokens per second that the model computes."""

    write_rate: float
    """Tokens per second of the chunks that are written to a second tier."""

    def writing(self, memory: int, chunk_tokens: int) -> Writing:
        """Return the pace in chunks, behind a *memory* of that size in chunks."""
        between = self.think * self.write_rate / chunk_tokens
        return Writing(max(1, memory // QUEUE), self.write_rate / self.compute_rate, between)


NAMINGS = 8
"""``min_reuse`` learns from a sample of names, so one naming is one draw: a plan gives a range."""

QUEUE = 4
"""The queue of an only tier with I/O takes this part of the memory, a quarter."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one process needs for its share of the jobs."""

    paths: Sequence[Path]
    """A trace in Mooncake's format, or the files and folders of records."""

    chunk_tokens: int
    chunk_bytes: int = 1
    recorded: bool = False
    pace: Pace | None = None
    """Of requests that follow each other; ``None``: there is always time to write."""

    min_reuse: float = 0.0
    """Of the compressed half, in further replays; 0: there are none."""

    def requests(self) -> list[TracedPrompt]:
        """Return the whole trace.

        Raises:
            BadTrace: it cannot be read, is empty, or is of another format.
        """
        if self.recorded:
            return requests_of(read_records(self.paths).calls, self.chunk_tokens)
        (path,) = self.paths
        try:
            with path.open("rb") as lines:
                found = list(read_mooncake(lines, self.chunk_tokens))
        except OSError as error:
            raise BadTrace(f"{path}: {error.strerror}") from error
        except BadTrace as error:
            raise BadTrace(f"{path}, {error}") from error
        if not found:
            raise BadTrace(f"{path}: no requests in it")
        return found


class Replayer:
    """Runs jobs over one trace."""

    def __init__(self, plan: Plan, requests: Sequence[TracedPrompt], registry: Registry) -> None:
        self._plan = plan
        self._requests = requests
        self._registry = registry

    def run(self, job: Job) -> Replay:
        """Return the result of one job."""
        tokens = self._plan.chunk_tokens
        if job.policy is None:
            return optimal(self._requests, job.chunks, chunk_tokens=tokens)
        name = job.policy

        def build() -> Policy:
            built: Policy = self._registry.open("policy", name, {}, OpenContext(SystemClock()))
            return built

        if job.ratio:
            half = job.chunks // 2
            pace = self._plan.pace if job.burst else None
            writing = None if pace is None else pace.writing(job.chunks, tokens)
            least = self._plan.min_reuse if job.naming >= 0 else 0.0
            below = Below(int(half * job.ratio), least, writing)
            requests = renamed(self._requests, max(0, job.naming))
            both = replay_stacked(requests, build, job.chunks - half, below, chunk_tokens=tokens)
            return Replay(both.tokens, both.hit_tokens, dropped=both.dropped)
        size = self._plan.chunk_bytes
        return replay(self._requests, build, job.chunks, chunk_tokens=tokens, chunk_bytes=size)


def replays(
    plan: Plan, requests: Sequence[TracedPrompt], jobs: Sequence[Job], processes: int = 1
) -> Iterator[tuple[Job, Replay]]:
    """Yield the result of each of *jobs*, in any order."""
    if processes == 1:
        replayer = Replayer(plan, requests, installed())
        for job in jobs:
            yield job, replayer.run(job)
        return
    # Dealt out in turn: neighbours take about as long, so the shares end together.
    shares = [jobs[start::processes] for start in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        for share in as_completed(pool.submit(_run_apart, plan, share) for share in shares):
            yield from share.result()


def _run_apart(plan: Plan, jobs: Sequence[Job]) -> list[tuple[Job, Replay]]:
    """Run jobs in a process of its own, which reads the trace: that is faster than sending it."""
    replayer = Replayer(plan, plan.requests(), installed())
    return [(job, replayer.run(job)) for job in jobs]


@dataclass(frozen=True, slots=True)
class Compared:
    """Policies at sizes, beside the best that is possible."""

    names: Sequence[str]
    chunks: Sequence[int]
    done: dict[Job, Replay]
    most: Replay
    """The replay of a tier without limits."""

    ratio: float = 0.0
    """Compression of a half of the memory in further replays; 0: there are none."""

    pace: Pace | None = None
    """Of requests in still further ones; ``None``: there are none."""

    min_reuse: float = 0.0
    """Of the compressed half in still further ones; 0: there are none."""

    @property
    def rows(self) -> Mapping[str, Sequence[Job]]:
        """The jobs at any size behind each heading: of several, the first has the least hits."""
        rows = {name: [Job(name, 0)] for name in self.names}
        if not self.ratio:
            return rows
        label = f"half {self.ratio:g} x smaller"
        rows |= {f"{name}, {label}": [Job(name, 0, self.ratio)] for name in self.names}
        if self.pace is not None:
            apart = f"{label}, {self.pace.think:g} s apart"
            rows |= {f"{name}, {apart}": [Job(name, 0, self.ratio, True)] for name in self.names}
        if self.min_reuse:
            label += f", min_reuse {self.min_reuse:g}"
            for name in self.names:
                jobs = [Job(name, 0, self.ratio, naming=at) for at in range(NAMINGS)]
                rows |= {f"{name}, {label}, at least": jobs, f"{name}, {label}, at most": jobs}
        return rows

    @property
    def jobs(self) -> list[Job]:
        """The jobs behind all rows, and the optimum, at every size."""
        kinds = [Job(None, 0), *chain.from_iterable(self.rows.values())]
        return [job._replace(chunks=size) for size in self.chunks for job in dict.fromkeys(kinds)]

    def found(self, row: str, size: int) -> Replay:
        """Return the replay of one row at one size; of several namings, the least or the most."""
        done = [self.done[job._replace(chunks=size)] for job in self.rows[row]]
        return (max if row.endswith("at most") else min)(done, key=lambda one: one.hit_tokens)

    def rates(self, row: str | None) -> list[float]:
        """Return the hit rate of a row at each size; of ``None``, that with the future known."""
        if row is None:
            return [self.done[Job(None, size)].hit_rate for size in self.chunks]
        return [self.found(row, size).hit_rate for size in self.chunks]

    def as_json(self, trace: str, block_tokens: int, block_bytes: int | None) -> dict[str, object]:
        """Return all of it as JSON values."""
        return {
            "trace": trace,
            "requests": self.most.requests,
            "tokens": self.most.tokens,
            "block_tokens": block_tokens,
            "block_bytes": block_bytes,
            "unlimited": self.most.hit_rate,
            "sizes": [
                {
                    "blocks": size,
                    "optimal": self.done[Job(None, size)].hit_rate,
                    "policies": {
                        row: {
                            "hit_rate": self.found(row, size).hit_rate,
                            "hit_tokens": self.found(row, size).hit_tokens,
                            "evictions": self.found(row, size).evictions,
                            "dropped": self.found(row, size).dropped,
                        }
                        for row in self.rows
                    },
                }
                for size in self.chunks
            ],
        }


def compared(
    names: Sequence[str],
    chunks: Sequence[int],
    plan: Plan,
    requests: Sequence[TracedPrompt],
    ratio: float = 0.0,
) -> Compared:
    """Return the comparison on *requests*, without results of jobs."""
    most = unlimited(requests, chunk_tokens=plan.chunk_tokens)
    return Compared(names, chunks, {}, most, ratio, plan.pace, plan.min_reuse)
