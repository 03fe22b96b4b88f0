"""``hexkv trace``: the recent steps of a running cache, as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.admin.chrome_trace import calls_of, chrome_trace, timeline
from hexkv.adapters.admin.cli.options import Target
from hexkv.plugins.cli.output import Json, new_app, print_json, refuse, run_app
from hexkv.ports import ConfigError, TraceStep


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
    request: Annotated[
        str,
        typer.Option(help="Print one call instead: slowest, last, or its name in the file."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Write the last steps of a node, or of an engine that serves administration.

    The file is in Chrome's trace format: open it in ui.perfetto.dev or chrome://tracing. It has a
    row for each lane of each tier, and one for each thread that called. It holds no tokens. With
    --request print the parts of one call as a timeline.
    """
    try:
        target = Target.of(address, secret_file, tls_ca, config)
    except ConfigError as error:
        refuse("--config", " ".join(str(error).split()))
    steps = target.connect().steps()
    if request:
        _print_call(steps, request, as_json=as_json)
        return
    text = json.dumps(chrome_trace(steps, f"hexkv {address}"))
    if str(output) == "-":
        typer.echo(text)
        return
    try:
        output.write_text(text)
    except OSError as error:
        refuse("--output", f"{output}: {error.strerror}")
    calls = len(calls_of(steps))
    if as_json:
        print_json({"file": str(output), "steps": len(steps), "calls": calls})
    else:
        typer.echo(f"{output}: {len(steps)} steps of {calls} calls; open it in ui.perfetto.dev")


def _print_call(steps: Sequence[TraceStep], request: str, *, as_json: bool) -> None:
    calls = calls_of(steps)
    if not calls:
        refuse("--request", "no call is remembered")
    found = {
        "slowest": max(calls, key=lambda step: step.seconds),
        "last": calls[-1],
        **{step.call: step for step in calls},
    }
    if (call := found.get(request)) is None:
        refuse("--request", f"{request!r}: no such call is remembered: slowest, last, or its name")
    parts = timeline(steps, call.call)
    if as_json:
        print_json([step._asdict() for step in steps if step.call == call.call])
        return
    typer.echo(f"{call.call}, up to chunk {call.key[:16]}:")
    longest = max(len(name) for name, _, _ in parts)
    for name, bar, numbers in parts:
        typer.echo(f"  {name.ljust(longest)} |{bar}| {numbers}")


def run(arguments: Sequence[str]) -> int:
    """Run the command, for a plugin."""
    app = new_app("Write what took time in a running cache, as a picture.")
    app.command()(trace)
    return run_app(app, "hexkv trace", arguments)
