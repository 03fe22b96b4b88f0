"""The command ``hexkv quality``: the serdes that keep a bound on a model of the user's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.quality.measure import RAW, Case, Summary, measure
from hexkv.adapters.hf.warm.opening import bar, called_well, open_model
from hexkv.plugins.cli.output import Json, named, new_app, print_json, print_table, run_app
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.identity import identify, measured_identity
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import InvalidRequest, LayoutMismatch, Serde

_NORMAL = 1.96


class SerdeVerdict(NamedTuple):
    """One serde on one model."""

    serde: str
    ratio: float
    kl: float
    """Nats, on average over the prompts."""

    kl_95: float
    """By how much the mean may be off, with 95 %."""

    agreement: float
    seconds: float
    """For encoding and decoding the KV of all prompts, on one core."""

    keeps: bool
    """True if the mean is within the bound, with what 95 % add."""


def cases_of(documents: Sequence[Sequence[int]], answer: int) -> list[Case]:
    """A case for each document: its last *answer* tokens are judged behind the KV of the others.

    Raises:
        InvalidRequest: there are fewer than two documents, or one is too short.
    """
    if len(documents) < 2:
        raise InvalidRequest("an interval takes two prompts or more")
    cases = []
    for number, tokens in enumerate(documents, start=1):
        if len(tokens) < 2 * answer:
            raise InvalidRequest(
                f"prompt {number} has {len(tokens)} tokens, fewer than twice --answer {answer}"
            )
        found = torch.tensor(tokens)
        # The suffix begins with a token whose follower is judged.
        suffix = found[-answer - 1 :]
        judged = torch.arange(answer)
        cases.append(Case(found[: -answer - 1], suffix, judged, suffix[1:]))
    return cases


def verdicts(found: Mapping[str, Summary], bound: float) -> list[SerdeVerdict]:
    """Of each serde, the smallest payloads first."""
    rows = []
    for name, summary in found.items():
        half = _NORMAL * summary.kl_error
        # Not "more than": a divergence that is no number keeps nothing.
        keeps = summary.kl + half <= bound
        rows.append(
            SerdeVerdict(
                name, summary.ratio, summary.kl, half, summary.agreement, summary.seconds, keeps
            )
        )
    return sorted(rows, key=lambda row: -row.ratio)


def quality(  # noqa: PLR0913
    model: Annotated[str, typer.Argument(help="A folder, or a name on the hub.")],
    prompts: Annotated[
        list[Path],
        typer.Option(
            exists=True,
            help="Prompts as the model will see them, as for `hexkv warm`. May be repeated.",
        ),
    ],
    bound: Annotated[
        float, typer.Option(help="Nats that expectations may be from those after exact KV.")
    ] = 1e-3,
    answer: Annotated[int, typer.Option(min=1, help="Last tokens of a prompt, judged.")] = 64,
    serde: Annotated[
        list[str] | None, typer.Option(help="Only this one; by default all. May be repeated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration of the cache.")] = None,
    name: Annotated[
        str, typer.Option(help="The name of the model among hosts that share the cache.")
    ] = "",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16; by default the checkpoint's.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure which serdes keep a bound on a model, and print the lines for its configuration.

    Exit code 0: a lossy serde keeps the bound; 1: none does.
    """
    with called_well("nothing is measured"):
        if not (math.isfinite(bound) and bound > 0):
            raise InvalidRequest(f"--bound: {bound} is no number of nats above 0")
        with named("--config", config):
            loaded = load(config)
        offered = _serdes(serde)
        reader, network = open_model(model, dtype, device, "MODEL")
        with named("--prompts"):
            documents = [found.tokens for path in prompts for found in reader.read(path)]
            cases = cases_of(documents, answer)
        try:
            identity = measured_identity(identify(namespace_of_model(network, name=name), loaded))
            with bar("comparing", len(cases), "prompts") as progress:
                found = measure(network, cases, offered, progress)
        except LayoutMismatch as error:
            raise InvalidRequest(f"MODEL {model}: {error}") from error
    rows = verdicts({key: value for key, value in found.items() if key != RAW}, bound)
    lossy = [row for row in rows if row.keeps and not offered[row.serde].lossless]
    if as_json:
        report = [row._asdict() for row in rows]
        print_json({"measured": identity, "bound": bound, "prompts": len(cases), "serdes": report})
    else:
        _print(rows, lossy, identity, bound)
    raise typer.Exit(0 if lossy else 1)


def _serdes(wanted: Sequence[str] | None) -> dict[str, Serde]:
    registry, context = discover(), OpenContext(SystemClock())
    known = [name for name in registry.names("serde") if name != RAW]
    for name in wanted or ():
        if name not in known:
            raise InvalidRequest(f"--serde: {name!r} is none of {', '.join(known)}")
    return {name: registry.open("serde", name, {}, context) for name in wanted or known}


def _print(
    rows: Sequence[SerdeVerdict], lossy: Sequence[SerdeVerdict], identity: str, bound: float
) -> None:
    print_table(
        ["serde", "ratio ", "nats, 95 % ", "same token ", "seconds ", f"within {bound:g} "],
        [
            (
                row.serde,
                f"{row.ratio:.2f}",
                f"{row.kl:.2g} ({max(0.0, row.kl - row.kl_95):.2g} to {row.kl + row.kl_95:.2g})",
                f"{row.agreement:.2%}",
                f"{row.seconds:.1f}",
                "yes" if row.keeps else "no",
            )
            for row in rows
        ],
    )
    if not lossy:
        typer.echo(f"no lossy serde keeps {bound:g} nats on this model")
        return
    typer.echo("\nFor the configuration, which is then refused for other models:\n")
    typer.echo(f"model:\n  measured: {identity}")
    typer.echo(f"tiers:\n- serde: {lossy[0].serde}  # beside the tier's store")


def run_quality(arguments: Sequence[str]) -> int:
    """``hexkv quality``, from a plugin's point of view."""
    app = new_app("The effect of lossy serdes on a model's answers.")
    app.command()(quality)
    return run_app(app, "hexkv quality", arguments)
