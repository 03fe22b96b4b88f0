"""The base of all commands: running one, and printing tables and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from errno import ENOSPC
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hexkv.plugins.configuration.sizes import human_size as human_size  # for all commands
from hexkv.plugins.configuration.sizes import parse_time
from hexkv.plugins.configuration.values import at_home
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.distributions import COMMANDS
from hexkv.plugins.discovery.registry import Registry, require
from hexkv.plugins.spec import CommandSpec
from hexkv.ports import AdapterUnavailable, ConfigError, InvalidRequest

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PromptFile = Annotated[
    str,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="A prompt: file of token ids, JSON or words; - for stdin.",
    ),
]


def new_app(summary: str, group: type[TyperGroup] | None = None) -> typer.Typer:
    """Return an application whose errors hexkv prints.

    Args:
        summary: the first line of its help.
        group: formats its help; for ``hexkv`` itself, which installs a shell's completion.
    """
    return typer.Typer(
        cls=group,
        help=summary,
        add_completion=group is not None,
        no_args_is_help=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # else help imports a parser of Markdown, for half of its time
    )


def run_app(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Run *app* with *arguments*. Return the exit code.

    0: success; 1: a problem; 2: wrong usage. Characters that the screen cannot show are replaced in
    the output.
    """
    try:
        words = list(map(_at_home, arguments))
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    try:
        with _any_sign():
            command = get_command(app)
            _name_arguments(command)
            command.main(args=words, prog_name=name)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        typer.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        return 1
    return 0


def offered(registry: Registry) -> dict[str, CommandSpec]:
    """Return the commands of all plugins, and of ours those that are not installed.

    The name of a verb of another command has that one's before it, and a dot.
    """
    return {name: _lacking(name, registry) for name in COMMANDS} | registry.commands


def _lacking(name: str, registry: Registry) -> CommandSpec:
    """Return a command in place of one of ours that is not installed: it names its distribution."""
    hint = f"pip install {COMMANDS[name]}"

    def refuse(_: Sequence[str]) -> int:
        why = f"no plugin offers it{registry.said_of_broken()}"
        raise AdapterUnavailable(name.replace(".", " "), why, hint)

    return CommandSpec(name, f"Not installed: {hint}", refuse)


def add_command(
    app: typer.Typer, word: str, command: CommandSpec, kind: type[TyperCommand] = TyperCommand
) -> None:
    """Let *app* pass every word after *word*, ``--help`` included, to a plugin's command."""

    def call(context: typer.Context) -> None:
        require(command)
        raise typer.Exit(command.run(context.args))

    app.command(
        word,
        cls=kind,
        help=command.summary,
        short_help=command.summary,  # the list of commands would cut the other short
        add_help_option=False,
        context_settings={
            "allow_extra_args": True,
            "allow_interspersed_args": False,
            "ignore_unknown_options": True,
        },
    )(call)


def _name_arguments(command: Any) -> None:
    """Name arguments in capitals, in help and in messages: typer has them as the program does."""
    for parameter in command.params:
        if parameter.param_type_name == "argument" and parameter.metavar is None:
            parameter.metavar = parameter.name.upper()
    for verb in getattr(command, "commands", {}).values():
        _name_arguments(verb)


def _at_home(word: str) -> str:
    """Expand ``~`` in an argument; shells leave that of ``--option=~/file`` to the command."""
    option, equals, path = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{at_home(path)}" if path.startswith("~/") else word


@contextmanager
def _any_sign() -> Iterator[None]:
    """Replace characters that the encoding of stdout lacks: not all screens are UTF-8."""
    out = sys.stdout
    if not isinstance(out, TextIOWrapper):
        yield
        return
    errors = out.errors
    out.reconfigure(errors="replace")
    try:
        yield
    finally:
        out.reconfigure(errors=errors)


def time_option(help: str, *flags: str, least: float = 0.0, most: float = math.inf) -> Any:  # noqa: A002
    """Return an option that takes a time, with the bounds of :func:`times`."""
    return typer.Option(*flags, parser=times(least, most), metavar="TIME", help=help)


def size_option(help: str, *flags: str) -> Any:  # noqa: A002
    """Return an option that takes a size, as a text such as ``22GiB``; the command parses it."""
    return typer.Option(*flags, metavar="SIZE", help=help)


def times(least: float = 0.0, most: float = math.inf) -> Callable[[str], float]:
    """Return the parser of an option for a time: seconds, or a text such as ``200ms`` or ``2min``.

    Args:
        least: seconds.
        most: seconds.
    """

    def time(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            try:
                seconds = float(str(parse_time(text)))
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
        if not least <= seconds <= most:  # false for NaN, too
            bounds = f"at least {least:g} s" + ("" if most == math.inf else f", at most {most:g} s")
            raise typer.BadParameter(f"{text!r} is not {bounds}")
        return seconds

    return time


class CalledWrongly(ConfigError):
    """The value of an option is invalid: exit code 2."""


@contextmanager
def named(flag: str, given: object = True) -> Iterator[None]:
    """Attribute errors of the block to *flag*, if that was *given*.

    Raises:
        CalledWrongly: in place of an error that the flag's value caused.
    """
    try:
        yield
    except (ConfigError, InvalidRequest) as error:
        if given is None or type(error) not in (ConfigError, InvalidRequest):
            raise
        raise CalledWrongly(f"{flag}: {error}") from error


def refuse(flag: str, problem: str) -> NoReturn:
    """End the command with the exit code of wrong usage."""
    typer.echo(f"error: {flag}: {' '.join(problem.split())}", err=True)
    raise typer.Exit(2)


def installed() -> Registry:
    """Return the installed plugins; their prints are not mixed with a command's output."""
    with aside():
        return discover()


@contextmanager
def aside() -> Iterator[None]:
    """Redirect Python's standard output to the standard error stream during the block.

    For commands alone: other threads of a host would find their output there, too.
    """
    with redirect_stdout(sys.stderr):
        yield


def print_json(value: object) -> None:
    """Print *value* for programs; values that JSON lacks are printed as text."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print *rows* for people. A column whose heading ends in a space is aligned right.

    A terminal's width decides where lines are folded; a pipe gets them whole.
    """
    from rich.console import Console  # most calls print no table
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(
            column.strip(),
            justify="right" if column.endswith(" ") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 100_000
    console.print(table)


def human_age(seconds: float) -> str:
    """Return a duration in its largest unit: ``3 h``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def plain(cell: str) -> str:
    """Return *cell* without control characters: file names and models come from outside."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell)
