"""``hexkv export`` and ``hexkv import``: chunks copied to and from a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from hexkv.archives.carrying import (
    Exported,
    FrameHome,
    Imported,
    Progress,
    bring_in,
    export,
    writing,
)
from hexkv.archives.format import ArchiveReader
from hexkv.archives.node import NodePlace
from hexkv.archives.selection import Selection
from hexkv.archives.tiers import TieredPlace
from hexkv.plugins.cli.output import (
    Json,
    PromptFile,
    human_size,
    installed,
    named,
    new_app,
    print_json,
    run_app,
    size_option,
)
from hexkv.plugins.configuration.config import Loaded, load
from hexkv.plugins.configuration.schema import parse_size
from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.observing.described import tokens_in
from hexkv.ports import PAGE, InvalidRequest

Archive = Annotated[str, typer.Argument(help="The file; - for a pipe.")]
Config = Annotated[Path | None, typer.Option(help="The configuration with the tiers.")]
SpaceOption = Annotated[
    str, typer.Option("--namespace", help="Only this one: how its digits begin.")
]
ModelOption = Annotated[str, typer.Option("--model", help="Only chunks of this model.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Only this tenant's.")]
FormerOption = Annotated[str, typer.Option("--prompt", hidden=True)]
TierOption = Annotated[
    list[str] | None, typer.Option("--tier", help="This tier alone. May be repeated.")
]
MemoryOption = Annotated[str, size_option("Bytes of memory that frames pass through.", "--memory")]
_MEMORY = "256MiB"
_LEAST = 4 * PAGE


def export_(  # noqa: PLR0913
    archive: Archive,
    config: Config = None,
    namespace: SpaceOption = "",
    model: ModelOption = "",
    tenant: TenantOption = "",
    tokens: PromptFile = "",
    former: FormerOption = "",
    tiers: TierOption = None,
    identity: Annotated[
        str,
        typer.Option(help="A file with the identity (JSON), for tiers that list nothing."),
    ] = "",
    memory: MemoryOption = _MEMORY,
    as_json: Json = False,
) -> None:
    """Write the chunks of a configuration's tiers into an archive, each verified.

    A second run goes on where the first was cut, and adds new chunks. Exit code 0: all chunks are
    in the archive; 1: a chunk that a tier lists could not be read.
    """
    registry = installed()
    with _called_well(), ExitStack() as opened:
        with named("--config", config):
            loaded = load(config)
        selection = _selection(loaded, namespace, model, tenant, tokens or former)
        described = _identity(identity)
        place = opened.enter_context(_place(loaded, registry, tiers or (), memory))
        file = sys.stdout.buffer if archive == "-" else opened.enter_context(writing(Path(archive)))
        codec = frame_codec(registry, loaded.settings.checksum)
        progress = opened.enter_context(_bar("exporting", "chunks"))
        pipe = archive == "-"
        report = export(place, selection, file, codec, progress, described, pipe=pipe)
    if as_json:
        _print(json.dumps({"archive": archive, **asdict(report)}, indent=2), aside=archive == "-")
    else:
        _print(_exported(report), aside=archive == "-")
    raise typer.Exit(1 if report.lost else 0)


def import_(  # noqa: PLR0913
    archive: Archive,
    config: Config = None,
    namespace: SpaceOption = "",
    model: ModelOption = "",
    tenant: TenantOption = "",
    tokens: PromptFile = "",
    former: FormerOption = "",
    tiers: TierOption = None,
    memory: MemoryOption = _MEMORY,
    as_json: Json = False,
) -> None:
    """Put the chunks of an archive on a configuration's tiers, each verified before.

    Chunks that are there are passed over, so a second run goes on where the first was cut. Exit
    code 0: the archive was whole, and all of it is there now; 1: the report lists the rest.
    """
    registry = installed()
    with _called_well(), ExitStack() as opened:
        with named("--config", config):
            loaded = load(config)
        selection = _selection(loaded, namespace, model, tenant, tokens or former)
        codec = frame_codec(registry, loaded.settings.checksum)
        reader = ArchiveReader(opened.enter_context(_reading(archive)), codec)
        place = opened.enter_context(_place(loaded, registry, tiers or (), memory))
        progress = opened.enter_context(_bar("importing", "bytes"))
        report = bring_in(place, selection, reader, progress)
    if as_json:
        print_json({"archive": archive, "well": report.well, **asdict(report)})
    else:
        typer.echo(_imported(report))
    raise typer.Exit(0 if report.well else 1)


@contextmanager
def _called_well() -> Iterator[None]:
    """Turn an invalid request into one line, and exit code 2."""
    try:
        yield
    except InvalidRequest as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("stopped: the same command goes on from here", err=True)
        raise typer.Exit(1) from None
    except OSError as error:  # of the archive: a place that fails raises another error
        typer.echo(f"error: the archive: {error.strerror or error}", err=True)
        raise typer.Exit(1) from error


def _selection(loaded: Loaded, namespace: str, model: str, tenant: str, prompt: str) -> Selection:
    with named("--tokens"):
        tokens = tokens_in(prompt) if prompt else None
    return Selection.of(loaded, namespace=namespace, model=model, tenant=tenant, prompt=tokens)


def _identity(source: str) -> str:
    """Return the identity in a file, in the form that frames have."""
    if not source:
        return ""
    try:
        described = json.loads(Path(source).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"--identity: {source}: holds no JSON") from error
    return json.dumps(described, sort_keys=True, separators=(",", ":"))


@contextmanager
def _place(
    loaded: Loaded, registry: Registry, tiers: Sequence[str], memory: str
) -> Iterator[FrameHome]:
    try:
        size = int(str(parse_size(memory)))
    except ValueError as error:
        raise InvalidRequest(f"--memory: {error}") from error
    if not _LEAST <= size < 2**63:
        raise InvalidRequest(f"--memory: {memory} is not {_LEAST} bytes or more")
    if loaded.settings.node:
        if tiers:
            raise InvalidRequest("--tier: the tiers are the node's: give its own configuration")
        with NodePlace(loaded, registry) as node:
            yield node
        return
    with TieredPlace(loaded, registry, tiers, size) as place:
        yield place


@contextmanager
def _reading(archive: str) -> Iterator[BinaryIO]:
    if archive == "-":
        yield sys.stdin.buffer
        return
    try:
        descriptor = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(f"{archive}: cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        yield file


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Progress]:
    """Yield the progress of a bar for people on the standard error stream."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    shown = TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit)
    columns = (TextColumn("{task.description}"), BarColumn(), shown, TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(what, total=0)
        yield lambda done, total: bars.update(task, completed=done, total=total or done)


def _print(text: str, *, aside: bool) -> None:
    typer.echo(text, err=aside)


def _exported(report: Exported) -> str:
    text = f"{report.frames} chunks ({human_size(report.bytes)}) written"
    text += f", {report.before} were there before" if report.before else ""
    return text + (f", {report.lost} could not be read" if report.lost else "")


def _imported(report: Imported) -> str:
    parts = [f"{report.frames} chunks ({human_size(report.bytes)}) put there"]
    parts += [f"{report.present} were there before"] if report.present else []
    parts += [f"{report.passed} not asked for"] if report.passed else []
    parts += [f"{report.evicted} chunks gave way to them"] if report.evicted else []
    lines = [", ".join(parts)]
    lines += [f"refused: {count}: {why}" for why, count in sorted(report.refused.items())]
    lines += [f"not taken: {count}: {why}" for why, count in sorted(report.failed.items())]
    lines += [f"damaged at byte {at}: {what}" for at, what in report.damage]
    lines += ["the archive was cut: what lies before that is used"] if report.cut else []
    lines += ["stopped: the tiers take nothing more"] if report.stopped else []
    return "\n".join(lines)


def run_export(arguments: Sequence[str]) -> int:
    """Run ``hexkv export``, as a plugin does."""
    app = new_app("Write chunks of tiers into an archive.")
    app.command()(export_)
    return run_app(app, "hexkv export", arguments)


def run_import(arguments: Sequence[str]) -> int:
    """Run ``hexkv import``, as a plugin does."""
    app = new_app("Put the chunks of an archive on tiers.")
    app.command()(import_)
    return run_app(app, "hexkv import", arguments)
