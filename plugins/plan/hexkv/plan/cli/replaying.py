"""Traces and records replayed: every policy at every size, in one process or in several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hexkv.plan.recorded import requests_of
from hexkv.plan.records import read_records
from hexkv.plan.replay import Replay, optimal, replay, unlimited
from hexkv.plan.stacked import Below, replay_stacked
from hexkv.plan.trace import BadTrace, TracedPrompt, read_mooncake
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


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one process needs for its share of the jobs."""

    paths: Sequence[Path]
    """A trace in Mooncake's format, or the files and folders of records."""

    chunk_tokens: int
    chunk_bytes: int = 1
    recorded: bool = False

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
            below = Below(int(half * job.ratio))
            both = replay_stacked(
                self._requests, build, job.chunks - half, below, chunk_tokens=tokens
            )
            return Replay(both.tokens, both.hit_tokens)
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
    done: Mapping[Job, Replay]
    most: Replay
    """The replay of a tier without limits."""

    ratio: float = 0.0
    """Compression of a half of the memory in further replays; 0: there are none."""

    @property
    def rows(self) -> Mapping[str, tuple[str, float]]:
        """By its heading, each policy and the ratio of compressed memory."""
        plain = {name: (name, 0.0) for name in self.names}
        if not self.ratio:
            return plain
        label = f"half {self.ratio:g} x smaller"
        return plain | {f"{name}, {label}": (name, self.ratio) for name in self.names}

    def found(self, row: str, size: int) -> Replay:
        """Return the replay of one row at one size."""
        name, ratio = self.rows[row]
        return self.done[Job(name, size, ratio)]

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
                        }
                        for row in self.rows
                    },
                }
                for size in self.chunks
            ],
        }


def jobs_of(names: Sequence[str], chunks: Sequence[int], ratio: float = 0.0) -> list[Job]:
    """Return jobs: every policy and the optimum at every size; with a *ratio* compressed, too."""
    jobs = [Job(name, size) for size in chunks for name in (None, *names)]
    return jobs + [Job(name, size, ratio) for size in chunks for name in names if ratio]


def compared(
    names: Sequence[str],
    chunks: Sequence[int],
    done: Mapping[Job, Replay],
    requests: Sequence[TracedPrompt],
    chunk_tokens: int,
    ratio: float = 0.0,
) -> Compared:
    """Return the results in *done* of *requests*."""
    return Compared(names, chunks, done, unlimited(requests, chunk_tokens=chunk_tokens), ratio)
