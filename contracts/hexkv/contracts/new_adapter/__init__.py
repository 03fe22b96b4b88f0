"""``hexkv new-adapter``: writes the package of a new adapter that already keeps its contract."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hexkv.plugins.cli.output import installed, new_app, run_app

_TEMPLATE = Path(__file__).with_name("template")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class AdapterKind(StrEnum):
    """The kind of the new adapter."""

    STORE = "store"
    SERDE = "serde"
    POLICY = "policy"
    MEMORY = "memory"
    DEVICE = "device"
    CHUNKER = "chunker"
    CHECKSUM = "checksum"
    DIRECTORY = "directory"
    CHANNEL = "channel"
    COMMAND = "command"
    EVENTS = "events"
    TELEMETRY = "telemetry"


def make(name: str, kind: AdapterKind, into: Path) -> None:
    """Write the files of a new adapter into the folder *into*.

    Raises:
        ValueError: *name* cannot be the name of a package.
    """
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ValueError(f"{name!r} is no name for a package: small letters, digits and '-'")
    if module in sys.stdlib_module_names or module == "hexkv":
        raise ValueError(f"{name!r} is the name of another module")
    from copier import run_copy

    asked = {"name": name, "kind": str(kind)}
    run_copy(str(_TEMPLATE), into, data=asked, defaults=True, quiet=True)


def new_adapter(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[KIND] NAME",
            help=f"The kind ({', '.join(AdapterKind)}; by default a store), and the name of the"
            " package and of the adapter.",
            show_default=False,
        ),
    ],
    kind: Annotated[AdapterKind | None, typer.Option(help="The kind, in another place.")] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where; by default a folder NAME here.")
    ] = None,
) -> None:
    """Make a package that keeps its contract: a toy to be made one's own."""
    *kinds, name = words
    if len(kinds) > 1 or (kinds and kind is not None):
        raise typer.BadParameter("say one kind and one name")
    try:
        kind = AdapterKind(kinds[0]) if kinds else kind or AdapterKind.STORE
    except ValueError as error:
        raise typer.BadParameter(f"{kinds[0]!r} is none of {', '.join(AdapterKind)}") from error
    offered = {(str(what), known): origin for (what, known), origin in installed().origin.items()}
    if taken := offered.get((kind.value, name)):
        raise typer.BadParameter(f"{taken} has a {kind} of this name")
    root = Path(name) if into is None else into
    if root.exists():
        hint = None if into is None else "--into"
        raise typer.BadParameter(f"{root} exists", param_hint=hint)
    try:
        make(name, kind, root)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for path in sorted(root.rglob("*")):
        if path.is_file():
            typer.echo(path)
    typer.echo(f"\nnext: cd {root}; pip install --editable . --group test; pytest")


def run(arguments: Sequence[str]) -> int:
    """Run the command with *arguments*; return the exit code."""
    app = new_app("Make a package for an adapter of one's own.")
    app.command()(new_adapter)
    return run_app(app, "hexkv new-adapter", arguments)
