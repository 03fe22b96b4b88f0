"""``hexkv trace``: the recent steps of a running cache, as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.admin.chrome_trace import chrome_trace
from hexkv.adapters.admin.cli.options import Target
from hexkv.plugins.cli.output import Json, new_app, print_json, refuse, run_app
from hexkv.ports import ConfigError


def trace(
    address: Annotated[
        str, typer.Argument(help="Path of a Unix socket, or host:port.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write; - for standard output.")
    ] = Path("hexkv-trace.json"),
    secret_file: Annotated[
        str, typer.Option(help="File with the other end's secret. Only its owner may read it.")
    ] = "",
    tls_ca: Annotated[str, typer.Option(help="Encrypt: file of authorities to trust.")] = "",
    config: Annotated[
        Path | None, typer.Option(help="A configuration whose section admin has the secret.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the last steps of a node, or of an engine that serves administration.

    The file is in Chrome's trace format: open it in ui.perfetto.dev or chrome://tracing. It has a
    row for each lane of each tier, and one for each thread that called. It holds no tokens.
    """
    try:
        target = Target.of(address, secret_file, tls_ca, config)
    except ConfigError as error:
        refuse("--config", " ".join(str(error).split()))
    steps = target.connect().steps()
    text = json.dumps(chrome_trace(steps, f"hexkv {address}"))
    if str(output) == "-":
        typer.echo(text)
        return
    try:
        output.write_text(text)
    except OSError as error:
        refuse("--output", f"{output}: {error.strerror}")
    calls = sum(1 for step in steps if step.key)
    if as_json:
        print_json({"file": str(output), "steps": len(steps), "calls": calls})
    else:
        typer.echo(f"{output}: {len(steps)} steps of {calls} calls; open it in ui.perfetto.dev")


def run(arguments: Sequence[str]) -> int:
    """Run the command, for a plugin."""
    app = new_app("Write what took time in a running cache, as a picture.")
    app.command()(trace)
    return run_app(app, "hexkv trace", arguments)
