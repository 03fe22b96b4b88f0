"""``hexkv fleet size``: the load of a fleet's directory, calculated in advance."""

from __future__ import annotations

from typing import Annotated

import typer

from hexkv.adapters.admin.cli import showing
from hexkv.fleet.sizing import size_fleet
from hexkv.plugins.cli.output import Json, human_size, named, time_option


def size(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the fleet.")],
    chunks: Annotated[int, typer.Option(min=0, help="Chunks that each of them has.")],
    events: Annotated[
        float, typer.Option(min=0, help="Chunks that come or go at each of them, a second.")
    ] = 64.0,
    questions: Annotated[
        float, typer.Option(min=0, help="Prompts of 512 chunks that each asks for, a second.")
    ] = 10.0,
    directory: Annotated[
        str, typer.Option(help="static, embedded or redis; by default the usual one.")
    ] = "",
    heartbeat: Annotated[float, time_option("Time between signs of life.", least=0.05)] = 1,
    as_json: Json = False,
) -> None:
    """Say what the directory of a fleet takes: memory, messages, bandwidth, cores."""
    kind = directory or ("static" if nodes <= 10 else "embedded")
    with named("--directory"):
        found = size_fleet(
            kind,
            nodes=nodes,
            chunks=chunks,
            events=events,
            questions=questions,
            heartbeat=heartbeat,
        )
    if as_json:
        showing.as_json({"directory": kind, **found._asdict()})
        return
    place = "each node" if kind == "static" else "the directory"
    low, high = map(human_size, found.memory)
    least, most = map(human_size, found.node_memory)
    cells = f"{found.cells} cells of {found.nodes} nodes, each with" if found.cells > 1 else ""
    typer.echo(f"{cells or f'{found.nodes} nodes with'} the directory {kind}")
    typer.echo(f"  chunks known: {found.chunks:,}")
    typer.echo(f"  memory of {place}: {low} to {high}")
    typer.echo(f"  memory of each node to report: {least} to {most}")
    typer.echo(f"  events: {found.events:,.0f} a second")
    typer.echo(
        f"  messages: {found.reports:,.0f} reports, {found.questions:,.0f} questions a second"
    )
    typer.echo(f"  link of {place}: {human_size(round(found.bandwidth))} a second")
    typer.echo(f"  cores of {place}: {found.cores:.2f}" + (" (too many)" * (found.cores > 1)))
