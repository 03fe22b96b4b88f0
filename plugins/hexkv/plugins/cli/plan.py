"""``hexkv plan``: what tiers of several sizes would have found of a recorded trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from hexkv.core.planning import (
    BadTrace,
    Replay,
    Request,
    optimal,
    read_mooncake,
    replay,
    unlimited,
)
from hexkv.plugins.cli.chart import Series, bar, to_svg
from hexkv.plugins.cli.output import Json, installed, new_app, print_json, print_table, run_app
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.registry import Registry
from hexkv.plugins.schema import parse_size
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Policy

_COUNT = re.compile(r"(\d{1,12})([km]?)", re.ASCII)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6}
_BAR = 50


class Job(NamedTuple):
    """One replay; the policy ``None`` knows the future."""

    policy: str | None
    chunks: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one process needs for its share of the jobs."""

    trace: Path
    chunk_tokens: int
    chunk_bytes: int = 1

    def requests(self) -> list[Request]:
        """The whole trace.

        Raises:
            BadTrace: it cannot be read, or holds nothing or something else.
        """
        try:
            with self.trace.open("rb") as lines:
                found = list(read_mooncake(lines, self.chunk_tokens))
        except OSError as error:
            raise BadTrace(f"{self.trace}: {error.strerror}") from error
        except BadTrace as error:
            raise BadTrace(f"{self.trace}, {error}") from error
        if not found:
            raise BadTrace(f"{self.trace}: no requests in it")
        return found


class Replayer:
    """Runs jobs over one trace."""

    def __init__(self, plan: Plan, requests: Sequence[Request], registry: Registry) -> None:
        self._plan = plan
        self._requests = requests
        self._registry = registry

    def run(self, job: Job) -> Replay:
        """What came of one job."""
        tokens = self._plan.chunk_tokens
        if job.policy is None:
            return optimal(self._requests, job.chunks, chunk_tokens=tokens)
        name = job.policy

        def build() -> Policy:
            built: Policy = self._registry.open("policy", name, {}, OpenContext(SystemClock()))
            return built

        size = self._plan.chunk_bytes
        return replay(self._requests, build, job.chunks, chunk_tokens=tokens, chunk_bytes=size)


def _run_apart(plan: Plan, jobs: Sequence[Job]) -> list[tuple[Job, Replay]]:
    """In a process of its own, which reads the trace itself: that is faster than sending it."""
    replayer = Replayer(plan, plan.requests(), installed())
    return [(job, replayer.run(job)) for job in jobs]


def _results(
    plan: Plan, requests: Sequence[Request], jobs: Sequence[Job], processes: int
) -> Iterator[tuple[Job, Replay]]:
    if processes == 1:
        replayer = Replayer(plan, requests, installed())
        for job in jobs:
            yield job, replayer.run(job)
        return
    # Dealt out like cards: neighbours take about as long, so the shares end together.
    shares = [jobs[start::processes] for start in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        for share in as_completed(pool.submit(_run_apart, plan, share) for share in shares):
            yield from share.result()


def parse_chunks(text: str, chunk_bytes: int | None) -> int:
    """Chunks in *text*: ``3k``, or bytes such as ``64GiB`` where a chunk's bytes are known.

    Raises:
        ValueError: it is neither.
    """
    if match := _COUNT.fullmatch(text.lower()):
        chunks = int(match[1]) * _FACTORS[match[2]]
    else:
        size = parse_size(text)
        if not chunk_bytes:
            raise ValueError(f"{text!r} are bytes: say with --block-bytes how many a block has")
        chunks = int(str(size)) // chunk_bytes
    if not chunks:
        raise ValueError(f"{text!r} has no room for a single block")
    return chunks


def plan(
    trace: Annotated[Path, typer.Argument(help="Requests, one JSON object a line (Mooncake's).")],
    sizes: Annotated[
        str, typer.Option(help="Blocks a tier holds: 1k,3k,10k; or bytes, see --block-bytes.")
    ] = "1k,3k,10k,30k",
    policies: Annotated[str, typer.Option(help="Which to compare; all by default.")] = "",
    block_tokens: Annotated[
        int, typer.Option(help="Tokens that each hash id stands for.", min=1)
    ] = 512,
    block_bytes: Annotated[
        str, typer.Option(help="Bytes of a block, so that sizes may be bytes.")
    ] = "",
    plot: Annotated[Path | None, typer.Option(help="Also draw the rates, as SVG.")] = None,
    processes: Annotated[int, typer.Option(help="How many to work with.", min=1, max=64)] = 1,
    as_json: Json = False,
) -> None:
    """Replay a trace: token hit rate by policy and size, beside what is possible at all."""
    try:
        room = int(str(parse_size(block_bytes))) if block_bytes else None
        chunks = sorted({parse_chunks(text.strip(), room) for text in sizes.split(",")})
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sizes, --block-bytes") from error
    registry = installed()
    names = [name.strip() for name in policies.split(",")] if policies else registry.names("policy")
    for name in names:
        registry.find("policy", name)
    task = Plan(trace, block_tokens, room or 1)
    requests = task.requests()
    jobs = [Job(name, size) for size in chunks for name in (None, *names)]
    done = dict(
        track(
            _results(task, requests, jobs, processes),
            "replaying",
            total=len(jobs),
            console=Console(stderr=True),
            transient=True,
            disable=as_json,
        )
    )
    most = unlimited(requests, chunk_tokens=block_tokens)
    if plot is not None:
        _draw(plot, names, chunks, done, most)
    if as_json:
        print_json(_report(trace, block_tokens, names, chunks, done, most))
    else:
        _print(names, chunks, done, most)


def _rates(name: str | None, chunks: Iterable[int], done: dict[Job, Replay]) -> list[float]:
    return [done[Job(name, size)].hit_rate for size in chunks]


def _report(
    trace: Path,
    block_tokens: int,
    names: Sequence[str],
    chunks: Sequence[int],
    done: dict[Job, Replay],
    most: Replay,
) -> dict[str, object]:
    return {
        "trace": trace.name,
        "requests": most.requests,
        "tokens": most.tokens,
        "block_tokens": block_tokens,
        "unlimited": most.hit_rate,
        "sizes": [
            {
                "blocks": size,
                "optimal": done[Job(None, size)].hit_rate,
                "policies": {
                    name: {
                        "hit_rate": done[Job(name, size)].hit_rate,
                        "hit_tokens": done[Job(name, size)].hit_tokens,
                        "evictions": done[Job(name, size)].evictions,
                    }
                    for name in names
                },
            }
            for size in chunks
        ],
    }


def _print(
    names: Sequence[str], chunks: Sequence[int], done: dict[Job, Replay], most: Replay
) -> None:
    typer.echo(f"{most.requests:,} requests, {most.tokens:,} tokens; share of the tokens found:")
    typer.echo()
    rows = [(name, _rates(name, chunks, done)) for name in names]
    rows.append(("knowing the future", _rates(None, chunks, done)))
    rows.append(("without limits", [most.hit_rate] * len(chunks)))
    print_table(
        ["policy", *(f"{size:,} " for size in chunks)],
        [(name, *(f"{rate:.4f}" for rate in rates)) for name, rates in rows],
    )
    typer.echo()
    print_table(
        ["blocks ", "policy", "rate ", f"of {most.hit_rate:.4f}"],
        [
            (f"{size:,}", name, f"{rates[at]:.4f}", bar(rates[at], most.hit_rate, _BAR))
            for at, size in enumerate(chunks)
            for name, rates in rows[:-1]
        ],
    )


def _draw(
    plot: Path,
    names: Sequence[str],
    chunks: Sequence[int],
    done: dict[Job, Replay],
    most: Replay,
) -> None:
    series = [Series(name, _rates(name, chunks, done)) for name in names]
    series.append(Series("knowing the future", _rates(None, chunks, done), limit=True))
    series.append(Series("without limits", [most.hit_rate] * len(chunks), limit=True))
    try:
        plot.write_text(to_svg(series, chunks), encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{plot}: {error.strerror}", param_hint="--plot") from error


def run(arguments: Sequence[str]) -> int:
    """The command, from a plugin's point of view."""
    app = new_app("Replay a trace through policies and sizes.")
    app.command()(plan)
    return run_app(app, "hexkv plan", arguments)
