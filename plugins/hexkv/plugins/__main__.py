"""``hexkv``: the commands of all plugins under one name."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hexkv.plugins.cli.completion import CompletedCommand
from hexkv.plugins.cli.output import (
    CalledWrongly,
    add_command,
    installed,
    new_app,
    offered,
    run_app,
)
from hexkv.plugins.discovery.distributions import COMMANDS, GROUPS
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.observing import logs
from hexkv.ports import HexKVError

log = logging.getLogger("hexkv.command")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code: 0 success, 1 a problem, 2 wrong usage.

    Errors of hexkv's own tree are one line on the standard error stream.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Before anything is parsed: discovery can fail, too.
    debug = words[:1] == ["--debug"]
    wanted = next((word for word in words if not word.startswith("-")), "")
    with logs.shown(wanted or "hexkv"):
        try:
            registry = installed()
            code = run_app(_application(registry, wanted), "hexkv", words)
        except HexKVError as error:
            if debug:
                raise
            why = " ".join(str(error).split())
            if logs.as_json():
                log.error("%s", why)  # noqa: TRY400 - with --debug the error is raised
            else:
                print(f"error: {why}", file=sys.stderr)
            return 2 if isinstance(error, CalledWrongly) else 1
    if wanted and wanted not in {*registry.commands, *COMMANDS} and registry.broken:
        print(registry.said_of_broken().removeprefix("; "), file=sys.stderr)
    return code


class _Grouped(TyperGroup):
    """Lists commands below the headings of :data:`GROUPS`; those of other packages come last."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write a section for each heading."""
        rest = set(self.commands)
        for heading, names in [*GROUPS.items(), ("Commands of others", frozenset(rest))]:
            if listed := sorted(names & rest):
                rest -= names
                with formatter.section(heading):
                    rows = [(name, self.commands[name].short_help or "") for name in listed]
                    formatter.write_dl(rows)


def _application(registry: Registry, wanted: str) -> typer.Typer:
    """Return the command *wanted* alone; all commands if none has that name."""
    app = new_app("A pluggable multi-tier KV cache for LLM serving.", _Grouped)
    app.callback(invoke_without_command=True)(_options)
    commands = {name: spec for name, spec in offered(registry).items() if "." not in name}
    for name in [wanted] if wanted in commands else sorted(commands):
        add_command(app, name, commands[name], CompletedCommand)
    return app


def _options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where errors come from. Comes first.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    level: Annotated[str, typer.Option("--log-level", hidden=True, envvar="HEXKV_LOG__LEVEL")] = "",
    form: Annotated[
        str, typer.Option("--log-format", hidden=True, envvar="HEXKV_LOG__FORMAT")
    ] = "",
) -> None:
    del debug  # main() handles it
    # From the environment, also for commands that read no configuration.
    for name, given, known in (("level", level, logs.LEVELS), ("format", form, logs.FORMATS)):
        if given and given not in known:
            raise CalledWrongly(f"log.{name} {given!r}: there are {', '.join(known)}")
    logs.configure(level, form)
    if version:
        typer.echo(f"hexkv {importlib.metadata.version('hexkv')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


if __name__ == "__main__":
    sys.exit(main())
