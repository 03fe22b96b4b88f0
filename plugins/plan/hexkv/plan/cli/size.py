"""``hexkv size``: the pool, disk and network that a model and its traffic need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hexkv.plan.cache_size import ModelShape, PlannedTraffic, Sized, size_cache
from hexkv.plan.model_config import read_shape
from hexkv.plan.recorded import requests_of
from hexkv.plan.records import read_records
from hexkv.plan.replay import unlimited
from hexkv.plan.trace import BadTrace
from hexkv.plugins.cli.output import (
    Json,
    human_size,
    named,
    new_app,
    print_json,
    print_table,
    refuse,
    run_app,
    time_option,
)
from hexkv.ports import DType


def size(  # noqa: PLR0913
    model: Annotated[
        Path | None, typer.Option(help="A model's config.json, or its folder (Hugging Face).")
    ] = None,
    former: Annotated[Path | None, typer.Option("--config", hidden=True)] = None,
    layers: Annotated[int, typer.Option(min=0, help="Layers with KV.")] = 0,
    heads: Annotated[int, typer.Option(min=0, help="KV heads of each layer.")] = 0,
    width: Annotated[int, typer.Option(min=0, help="Width of a head's keys.")] = 0,
    value_width: Annotated[
        int, typer.Option(min=0, help="Width of its values, if it is another one.")
    ] = 0,
    latent: Annotated[
        int, typer.Option(min=0, help="Width of the latent vector (MLA), in place of heads.")
    ] = 0,
    rope: Annotated[int, typer.Option(min=0, help="Width of its part with positions.")] = 0,
    dtype: Annotated[
        DType | None, typer.Option(help="Of the KV; by default the configuration's, or bfloat16.")
    ] = None,
    tensor: Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel ranks.")] = 1,
    pipeline: Annotated[int, typer.Option("--pp", min=1, help="Pipeline parallel ranks.")] = 1,
    requests: Annotated[float, typer.Option(min=0, help="Requests a second.")] = 1.0,
    prompt: Annotated[float, typer.Option(min=0, help="Tokens of a prompt.")] = 4096,
    shared: Annotated[
        float, typer.Option(min=0, max=1, help="Part of them that was asked for before.")
    ] = 0.5,
    prefixes: Annotated[int, typer.Option(min=0, help="Different shared beginnings.")] = 1,
    record: Annotated[
        list[Path] | None, typer.Option(help="A record, in place of these four.")
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a chunk.")] = 256,
    memory_seconds: Annotated[float, time_option("What memory keeps.")] = 300,
    disk_seconds: Annotated[float, time_option("What the disk keeps.")] = 86_400,
    smaller: Annotated[float, typer.Option(min=1, help="How much a serde saves on disk.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Say what a cache takes: bytes of a token, pool, disk and network, each with its formula."""
    if (folder := model or former) is not None:
        if layers or heads or width or value_width or latent or rope:
            refuse("--model", "give this or the model's numbers, not both")
        with named("--model"):
            shape = read_shape(folder, dtype)
    else:
        kind = dtype or DType.BFLOAT16
        shape = ModelShape(kind, layers, heads, width, value_width or width, latent, rope)
    traffic = PlannedTraffic(requests, prompt, shared, prefixes)
    if record:
        try:
            traffic = recorded_traffic(record)
        except BadTrace as error:
            refuse("--record", str(error))
    found = size_cache(
        shape,
        traffic,
        tensor=tensor,
        pipeline=pipeline,
        chunk_tokens=chunk,
        memory_seconds=memory_seconds,
        disk_seconds=disk_seconds,
        smaller=smaller,
    )
    if as_json:
        print_json({"traffic": asdict(traffic), "sizes": [one._asdict() for one in found]})
        return
    print_table(["", "value ", "how"], [(one.name, _shown(one), one.formula) for one in found])


def recorded_traffic(paths: Sequence[Path]) -> PlannedTraffic:
    """Return the traffic of a record; its shared part is the hits of a tier without limits."""
    record = read_records(paths)
    tokens = record.heads[0].chunk_tokens
    asked = [one for one in requests_of(record.calls, tokens) if one.asked]
    seconds = max(1e-3, record.calls[-1].began - record.calls[0].began)
    most = unlimited(asked, chunk_tokens=tokens)
    mean = most.tokens / max(1, most.requests)
    # Shared tokens are among those that were new once, which counts them already.
    return PlannedTraffic(most.requests / seconds, mean, most.hit_rate, 0)


def _shown(one: Sized) -> str:
    if one.unit == "tokens/s":
        return f"{one.value:,.1f} tokens/s"
    return human_size(round(one.value)) + one.unit.removeprefix("bytes")


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Compute what a cache takes.")
    app.command()(size)
    return run_app(app, "hexkv size", arguments)
