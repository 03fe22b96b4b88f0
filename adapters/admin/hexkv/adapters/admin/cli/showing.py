"""The output of ``hexkv admin``: answers for people, and the progress of a verb."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import typer

from hexkv.plugins.cli.output import human_age, human_size, print_json, print_table
from hexkv.plugins.observing.described import model_and_layout
from hexkv.ports import ChunkKey, Health, NamespaceState, Progress, TierState, Watch, WorkReport

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

R = TypeVar("R")

_SOON = 1.0
"""Seconds after which a verb shows its progress."""


def as_json(found: object) -> None:
    """Print an answer for programs, with keys in hexadecimal."""
    print_json(_named(found))


def _named(value: object) -> object:
    """Return an answer as JSON values; fields by their names, also those of tuples."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): _named(inner) for name, inner in value.items()}
    if is_dataclass(value):
        return {field.name: _named(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        return {name: _named(inner) for name, inner in zip(names, value, strict=True)}
    if isinstance(value, list | tuple):
        return [_named(inner) for inner in value]
    return value


def show_status(health: Health) -> None:
    """Print the state of a cache in a few lines."""
    frozen = ", frozen" if health.frozen else ""
    frozen += f": {health.why}" if health.why else ""
    used = f"{human_size(health.pool_held_bytes)} of {human_size(health.pool_bytes)}"
    typer.echo(f"{health.state}{frozen}; pool: {used} held; {health.prefetches} prefetches")
    for owner, count in health.leases.items():
        typer.echo(f"  {owner}: {count} leases")
    for owner, count in health.pins.items():
        seconds = health.pin_seconds.get(owner)
        until = "" if seconds is None else f", for {human_age(seconds)}"
        typer.echo(f"  {owner}: {count} chunks pinned{until}")
    print_table(
        ["tier", "chunks ", "used ", "budget ", "queued ", "failures ", "reading", "writing"],
        [
            (
                tier.name,
                "?" if tier.chunks is None else str(tier.chunks),
                "?" if tier.used_bytes is None else human_size(tier.used_bytes),
                "" if tier.budget_bytes is None else human_size(tier.budget_bytes),
                human_size(tier.queued_bytes),
                str(tier.failures),
                _breaker(tier.reading),
                _breaker(tier.writing),
            )
            for tier in health.tiers
        ],
    )
    for tier in health.tiers:
        if tier.last_error:
            ago = human_age(max(0.0, time.time() - (tier.last_error_time or 0.0)))
            typer.echo(f"  {tier.name}: last error {ago} ago: {tier.last_error}")
        if tier.full:
            typer.echo(f"  {tier.name}: its store has less room than the budget")
    if health.directory:
        typer.echo(f"  the directory is not informed: {health.directory}")


def show_tiers(tiers: Sequence[TierState]) -> None:
    """Print tiers and their rules."""
    print_table(
        ["tier", "chunks ", "used ", "budget ", "policy", "read", "write", "promote", "tenants"],
        [
            (
                tier.health.name + (" (indexing)" if tier.health.indexing else ""),
                "?" if tier.health.chunks is None else str(tier.health.chunks),
                "?" if tier.health.used_bytes is None else human_size(tier.health.used_bytes),
                "" if tier.health.budget_bytes is None else human_size(tier.health.budget_bytes),
                tier.policy or "the store's",
                "yes" if tier.reads else "no",
                tier.writes,
                "yes" if tier.promotes else "no",
                ", ".join(f"{n}: {human_size(u)}" for n, u in tier.health.tenants.items()),
            )
            for tier in tiers
        ],
    )


def show_namespaces(states: Sequence[NamespaceState]) -> None:
    """Print the namespaces and tenants of chunks."""
    print_table(
        ["namespace", "tenant", "model", "layout", "chunks"],
        [
            (
                state.prefix.hex()[:12],
                state.tenant,
                *model_and_layout(identity_of(state)),
                ", ".join(f"{tier}: {count}" for tier, count in state.chunks.items())
                + (" (segments)" if _of_segments(state) else ""),
            )
            for state in states
        ],
    )


def _of_segments(state: NamespaceState) -> bool:
    """True if its chunks are segments: other keys of the same model and tenant."""
    found = identity_of(state)
    return isinstance(found, dict) and str(found.get("scheme")).startswith("segment/")


def identity_of(state: NamespaceState) -> object:
    """Return the identity as JSON values; as text if another version wrote a different form."""
    try:
        return json.loads(state.identity)
    except (ValueError, RecursionError):
        return state.identity or "?"


def show_report(report: WorkReport) -> None:
    """Print the result for chunks; exit code 1 unless it is complete."""
    words = [f"{report.done} of {report.chunks} chunks done"]
    words += [f"{report.absent} were not there"] if report.absent else []
    words += [f"{report.failed} failed"] if report.failed else []
    words += [f"{human_size(report.saved_bytes)} saved"] if report.saved_bytes > 0 else []
    words += [f"{human_size(-report.saved_bytes)} more"] if report.saved_bytes < 0 else []
    words += ["stopped before the end"] if report.stopped else []
    typer.echo("; ".join(words))
    for tier, why in report.left.items():
        typer.echo(f"{tier}: there may be more: {why}")
    show_kept(report.kept)


def show_kept(kept: Sequence[ChunkKey]) -> None:
    """Print the chunks that exist only on the tier or node to be emptied, if any."""
    if kept:
        more = "" if len(kept) < 1000 else " or more"
        typer.echo(f"{len(kept)}{more} chunks are nowhere else:")
        for key in kept[:20]:
            typer.echo(f"  {key.hex()}")


def watched(what: str, begin: Callable[[Watch], R], show: Callable[[R], None]) -> None:
    """Run a verb and *show* its report, with its progress on a terminal after a second.

    The first Ctrl-C stops it before its next chunks, and the report is still shown; the second one
    leaves at once.
    """
    stopped = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            signal.default_int_handler(number, frame)
        stopped = True
        typer.echo("stopping before the next chunks", err=True)

    begun = time.monotonic()
    bar: Bar | None = None

    def watch(progress: Progress) -> bool:
        nonlocal bar
        if bar is None and sys.stderr.isatty() and time.monotonic() - begun > _SOON:
            bar = _bar(what)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=progress.chunks, total=progress.of)
        return not stopped

    former = signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            report = begin(watch)
        finally:
            if bar is not None:
                bar.stop()
        show(report)
    finally:
        signal.signal(signal.SIGINT, former)


def _bar(what: str) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(what, total=None)
    bar.start()
    return bar


def _breaker(state: str) -> str:
    return "" if state == "closed" else f"breaker {state}"


def summed(tiers: Sequence[str | None]) -> str:
    """Return the number of chunks on each tier, in words."""
    counts: dict[str, int] = {}
    for tier in tiers:
        if tier is not None:
            counts[tier] = counts.get(tier, 0) + 1
    return ", ".join(f"{tier}: {count}" for tier, count in counts.items())
