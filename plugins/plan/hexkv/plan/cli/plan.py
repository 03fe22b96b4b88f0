"""``hexkv plan``: the hits that tiers of several sizes would have had in a recorded trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from hexkv.plan.cli.chart import bar
from hexkv.plan.cli.replaying import Compared, Pace, Plan, compared, replays
from hexkv.plan.recorded import requests_of
from hexkv.plan.records import is_record, read_records
from hexkv.plan.reports import svg
from hexkv.plan.reports.document import write
from hexkv.plan.reports.planned import FUTURE, UNLIMITED, drawing, lines_of, plan_page
from hexkv.plan.trace import TracedPrompt
from hexkv.plugins.cli.output import (
    Json,
    installed,
    named,
    new_app,
    print_json,
    print_table,
    run_app,
    size_option,
    time_option,
)
from hexkv.plugins.configuration.schema import parse_size
from hexkv.ports import InvalidRequest

_COUNT = re.compile(r"(\d{1,12})([km]?)", re.ASCII)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6}
_BAR = 50

Policies = Annotated[str, typer.Option(help="Which to compare; all by default.")]
Processes = Annotated[int, typer.Option(help="How many to work with.", min=1, max=64)]
Html = Annotated[Path | None, typer.Option(help="Also write a page of its own.")]


def parse_chunks(text: str, chunk_bytes: int | None) -> int:
    """Return the chunks in *text*: ``3k``, or bytes such as ``64GiB`` if *chunk_bytes* is known.

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


def plan(  # noqa: PLR0913
    trace: Annotated[
        Path,
        typer.Argument(
            help="Requests, one JSON object a line (Mooncake's); or a record, or a folder of such."
        ),
    ],
    sizes: Annotated[
        str, typer.Option(help="Blocks a tier holds: 1k,3k,10k; or bytes, see --block-bytes.")
    ] = "1k,3k,10k,30k",
    policies: Policies = "",
    block_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that each hash id stands for; by default a record's.", min=1),
    ] = None,
    block_bytes: Annotated[
        str,
        size_option("Bytes of a block, so that sizes may be bytes; else a record's."),
    ] = "",
    compressed: Annotated[
        float,
        typer.Option(help="Also with a half of it as compressed memory: the ratio.", min=0, max=64),
    ] = 0.0,
    think: Annotated[
        float | None,
        time_option("Also with requests at this distance; 0: a burst."),
    ] = None,
    compute_rate: Annotated[
        float, typer.Option(help="Tokens a second that the model computes, for --think.", min=1)
    ] = 10_000.0,
    write_rate: Annotated[
        float, typer.Option(help="Tokens a second that are compressed, for --think.", min=1)
    ] = 10_000.0,
    min_reuse: Annotated[
        float,
        typer.Option(help="Also with this setting: a range over eight namings.", min=0, max=1),
    ] = 0.0,
    plot: Annotated[Path | None, typer.Option(help="Also draw the rates, as SVG.")] = None,
    html: Html = None,
    processes: Processes = 1,
    as_json: Json = False,
) -> None:
    """Replay a trace: token hit rate by policy and size, beside the best possible one."""
    task, requests = _opened(trace, block_tokens, block_bytes)
    for flag, given in (("--think", think is not None), ("--min-reuse", min_reuse)):
        if given and not compressed:
            raise typer.BadParameter("needs --compressed", param_hint=flag)
    pace = None if think is None else Pace(think, compute_rate, write_rate)
    task = replace(task, pace=pace, min_reuse=min_reuse)
    room = task.chunk_bytes if task.chunk_bytes > 1 else None
    chunks = chunks_of(sizes, room)
    names = policy_names(policies)
    found = compare(task, requests, names, chunks, processes, quiet=as_json, ratio=compressed)
    report = found.as_json(trace.name, task.chunk_tokens, room)
    if plot is not None:
        lines = [(line.name, line.limit) for line in lines_of(report)]
        save(plot, svg.standalone(drawing(report), lines), "--plot")
    if html is not None:
        save(html, plan_page(report), "--html")
    if as_json:
        print_json(report)
    else:
        _print(found)


def _opened(
    trace: Path, block_tokens: int | None, block_bytes: str
) -> tuple[Plan, list[TracedPrompt]]:
    try:
        room = int(str(parse_size(block_bytes))) if block_bytes else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--block-bytes") from error
    if not is_record(trace):
        task = Plan([trace], block_tokens or 512, room or 1)
        return task, task.requests()
    record = read_records([trace])
    head = record.heads[0]
    if block_tokens not in (None, head.chunk_tokens):
        raise InvalidRequest(f"{trace} was recorded in chunks of {head.chunk_tokens} tokens")
    task = Plan([trace], head.chunk_tokens, room or head.chunk_bytes, recorded=True)
    return task, requests_of(record.calls, head.chunk_tokens)


def chunks_of(sizes: str, chunk_bytes: int | None) -> list[int]:
    """Return the sizes that an option lists, in chunks."""
    try:
        return sorted({parse_chunks(text.strip(), chunk_bytes) for text in sizes.split(",")})
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sizes") from error


def policy_names(policies: str) -> list[str]:
    """Return the policies that an option lists, or all.

    Raises:
        ConfigError: one of them is not installed.
    """
    registry = installed()
    names = [name.strip() for name in policies.split(",")] if policies else registry.names("policy")
    with named("--policies"):
        for name in names:
            registry.find("policy", name)
    return names


def compare(
    task: Plan,
    requests: Sequence[TracedPrompt],
    names: Sequence[str],
    chunks: Sequence[int],
    processes: int,
    *,
    quiet: bool,
    ratio: float = 0.0,
) -> Compared:
    """Replay *requests* by every policy at every size, and show the progress unless *quiet*.

    With a *ratio* also with a half of the memory compressed.
    """
    found = compared(names, chunks, task, requests, ratio)
    jobs = found.jobs
    found.done.update(
        track(
            replays(task, requests, jobs, processes),
            "replaying",
            total=len(jobs),
            console=Console(stderr=True),
            transient=True,
            disable=quiet,
        )
    )
    return found


def save(path: Path, text: str, flag: str) -> None:
    """Write the file of option *flag*."""
    try:
        write(path, text)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint=flag) from error


def _print(found: Compared) -> None:
    most, chunks = found.most, found.chunks
    typer.echo(f"{most.requests:,} requests, {most.tokens:,} tokens; share of the tokens found:")
    typer.echo()
    rows = [(row, found.rates(row)) for row in found.rows]
    rows.append((FUTURE, found.rates(None)))
    rows.append((UNLIMITED, [most.hit_rate] * len(chunks)))
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


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Replay a trace through policies and sizes.")
    app.command()(plan)
    return run_app(app, "hexkv plan", arguments)
