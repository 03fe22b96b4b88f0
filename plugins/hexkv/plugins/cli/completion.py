"""A shell's completion of the words of ``hexkv``: typer's own, with the words of plugins' commands.

These come from the ``--help`` of the commands, verbs included: a plugin's command parses its
arguments itself, by any library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from typing import Annotated, Any, NamedTuple

import typer
from typer._completion_shared import Shells, get_completion_script
from typer.core import TyperCommand

from hexkv.plugins.cli.output import new_app, run_app
from hexkv.ports import HexKVError

_OPTION = re.compile(r"^  (?:-\w, )?(--[a-z][a-z-]*)", re.MULTILINE)
_COMMANDS = re.compile(r"^Commands[\w ]*:\n((?:  .*\n?)+)", re.MULTILINE)
_COMMAND = re.compile(r"^  ([a-z][a-z-]*)", re.MULTILINE)


class _Word(NamedTuple):
    """One completion, with the attributes that typer's shells print."""

    value: str
    type: str = "plain"
    help: str | None = None


class CompletedCommand(TyperCommand):
    """A plugin's command, completed by the words of its help."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the verbs and options that may follow the words of *ctx*."""
        captured = StringIO()
        with redirect_stdout(captured), redirect_stderr(StringIO()), suppress(HexKVError):
            self.main([*ctx.args, "--help"], prog_name=ctx.command_path, standalone_mode=False)
        text = captured.getvalue()
        words = [word for part in _COMMANDS.findall(text) for word in _COMMAND.findall(part)]
        words += dict.fromkeys(_OPTION.findall(text))
        return [_Word(word) for word in words if word.startswith(incomplete)]


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""

    def completion(shell: Annotated[Shells, typer.Argument(metavar="SHELL")]) -> None:
        """Print a script that has a shell complete the words of hexkv.

        hexkv --install-completion installs it for the present shell. By hand, for bash:
        eval "$(hexkv completion bash)", in ~/.bashrc.
        """
        script = get_completion_script(
            prog_name="hexkv", complete_var="_HEXKV_COMPLETE", shell=shell.value
        )
        typer.echo(script)

    app = new_app("Print a script that has a shell complete the words of hexkv.")
    app.command()(completion)
    return run_app(app, "hexkv completion", arguments)
