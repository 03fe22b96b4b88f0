"""``hexkv fsck``: verify a disk tier's directory, and repair it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from hexkv.adapters.local._check import Findings, check
from hexkv.adapters.local._check import repair as repair_directory
from hexkv.adapters.local.files.files import store_error
from hexkv.adapters.local.files.layout import MARKER
from hexkv.adapters.local.files.nofollow import resolved
from hexkv.plugins.cli.output import (
    Json,
    human_size,
    installed,
    new_app,
    print_json,
    print_table,
    run_app,
)
from hexkv.plugins.discovery.algorithms import frame_codec


def fsck(
    directory: Annotated[Path, typer.Argument(help="The directory of a disk tier.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair the problems found. No engine may be using it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify every frame in the directory of a disk tier.

    Exit code 0: all is well; 1: problems were found, and with --repair they are repaired
    unless the report lists them as left; 2: this is no such directory.
    """
    root = resolved(directory)
    if not os.path.isfile(f"{root}/{MARKER}"):
        what = f"{directory} is no disk tier's directory: it has no {MARKER}"
        raise typer.BadParameter(what, param_hint="DIRECTORY")
    codec = frame_codec(installed(), "crc32")  # no frame is sealed here
    try:
        findings = (repair_directory if repair else check)(root, codec, _watched)
    except OSError as error:
        raise store_error(error, f"{root} cannot be checked") from error
    if as_json:
        print_json(_report(findings, root))
    else:
        _print(findings, repair)
    raise typer.Exit(1 if findings.problems else 0)


def _watched(paths: list[str]) -> Iterable[str]:
    """Return *paths*, with a bar for people on the standard error stream."""
    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    return track(paths, "verifying", console=console, transient=True, disable=hidden)


def _report(findings: Findings, root: str) -> dict[str, object]:
    return {
        "directory": root,
        "frames": findings.frames,
        "bytes": findings.bytes,
        "engines": findings.engines,
        "quarantined": findings.quarantined,
        "problems": [
            {"fault": it.fault, "path": it.path, "detail": it.detail, "done": it.done}
            for it in findings.problems
        ],
        "foreign": findings.foreign,
    }


def _print(findings: Findings, repaired: bool) -> None:
    problems = findings.problems
    if problems:
        print_table(
            ["problem", "file", "detail", *(["done"] if repaired else [])],
            [(it.fault, it.path, it.detail, *([it.done] if repaired else [])) for it in problems],
        )
        typer.echo()
    for path in findings.foreign:
        typer.echo(f"foreign, left alone: {path!r}")
    kinds = Counter(it.fault.value for it in problems)
    found = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "no problems"
    typer.echo(
        f"{findings.frames} whole frames ({human_size(findings.bytes)}), {found},"
        f" {findings.quarantined} in quarantine, {len(findings.foreign)} foreign"
    )
    if findings.engines:
        typer.echo(f"{findings.engines} engines use it: the count of bytes was not checked")


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Verify the directory of a disk tier, and repair it.")
    app.command()(fsck)
    return run_app(app, "hexkv fsck", arguments)
