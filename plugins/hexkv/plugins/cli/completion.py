"""``hexkv completion``: a shell's completion of the words of ``hexkv``.

The words come from the ``--help`` of the commands: so those of any plugin are completed, and the
verbs of a command as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Annotated

import typer

from hexkv.plugins.cli.output import new_app, run_app

Main = Callable[[Sequence[str]], int]
"""``hexkv`` itself: runs a command, and returns its exit code."""

_SCRIPTS = {
    "bash": """\
_hexkv() {
    local words
    words=$(hexkv completion --of -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2> /dev/null)
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _hexkv hexkv
""",
    "zsh": """\
#compdef hexkv
_hexkv() {
    local -a found
    found=(${(f)"$(hexkv completion --of -- ${words[2,CURRENT-1]} 2> /dev/null)"})
    compadd -a found || _files
}
compdef _hexkv hexkv
""",
    "fish": """\
complete -c hexkv -a '(hexkv completion --of -- (commandline -opc)[2..] 2> /dev/null)'
""",
}

_OPTION = re.compile(r"^  (?:-\w, )?(--[a-z][a-z-]*)", re.MULTILINE)
_COMMANDS = re.compile(r"^Commands[\w ]*:\n((?:  .*\n?)+)", re.MULTILINE)
_COMMAND = re.compile(r"^  ([a-z][a-z-]*)", re.MULTILINE)


def following(words: Sequence[str], main: Main) -> list[str]:
    """Return the commands and options that may follow *words* of *main*, ``hexkv`` itself."""
    captured = StringIO()
    with redirect_stdout(captured), redirect_stderr(StringIO()):
        main([*words, "--help"])
    text = captured.getvalue()
    commands = [name for part in _COMMANDS.findall(text) for name in _COMMAND.findall(part)]
    return [*commands, *dict.fromkeys(_OPTION.findall(text))]


def run(arguments: Sequence[str], main: Main) -> int:
    """Run the command, as a plugin does."""

    def completion(
        words: Annotated[
            list[str] | None,
            typer.Argument(help="bash, zsh or fish.", metavar="SHELL", show_default=False),
        ] = None,
        of: Annotated[
            bool, typer.Option("--of", help="Print what may follow these words.")
        ] = False,
    ) -> None:
        """Print a script that has a shell complete the words of hexkv.

        For bash: eval "$(hexkv completion bash)", in ~/.bashrc.
        """
        words = words or []
        if of:
            typer.echo("\n".join(following(words, main)))
            return
        if len(words) != 1 or words[0] not in _SCRIPTS:
            known = ", ".join(_SCRIPTS)
            raise typer.BadParameter(f"give one of {known}", param_hint="SHELL")
        typer.echo(_SCRIPTS[words[0]], nl=False)

    app = new_app("Print a script that has a shell complete the words of hexkv.")
    app.command()(completion)
    return run_app(app, "hexkv completion", arguments)
