"""The command ``hexkv blend``: makes the record without which nothing is blended, and shows it."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.hf.blending.calibrate import (
    Trial,
    cheapest,
    measure,
    plans_for,
    record_of,
    sample_prompts,
)
from hexkv.adapters.hf.blending.record import BlendRecord
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.warm.documents import Reader
from hexkv.adapters.hf.warm.opening import bar, called_well, open_model
from hexkv.plugins.cli.output import Json, named, new_app, print_json, print_table, run_app
from hexkv.plugins.composition.identity import identify
from hexkv.plugins.configuration.config import load
from hexkv.ports import InvalidRequest, LayoutMismatch

_STAND_IN = ("argparse.py", "inspect.py", "tarfile.py", "typing.py")
"""Sources that every Python brings along: the sample where none is given."""


def calibrate(  # noqa: PLR0913
    model: Annotated[str, typer.Argument(help="A folder, or a name on the hub.")],
    record: Annotated[
        Path | None,
        typer.Option(help="The file to write; by default `segments.record` of --config."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration of the cache.")] = None,
    sample: Annotated[
        list[Path] | None,
        typer.Option(
            help="Documents as the model will see them, as for `hexkv warm`;"
            " by default some of Python's own sources. May be repeated."
        ),
    ] = None,
    bound: Annotated[
        float, typer.Option(help="Nats that blended answers may be from full ones on average.")
    ] = 0.002,
    prompts: Annotated[int, typer.Option(min=2, help="Prompts to make of the sample.")] = 32,
    segment: Annotated[int, typer.Option(min=1, help="Tokens of a segment.")] = 256,
    question: Annotated[int, typer.Option(min=1, help="Tokens behind the segments.")] = 64,
    name: Annotated[str, typer.Option(help="What hosts that share the cache call the model.")] = "",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16; by default the checkpoint's.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
    as_json: Json = False,
) -> None:
    """Compare blended answers of a model with full ones, and record the cheapest way that holds.

    Exit code 0: the record is written; 1: no way holds the bound, and no record is touched.
    """
    with called_well("no record is written"):
        if not (isfinite(bound) and bound > 0):
            raise InvalidRequest(f"--bound: {bound} is no number of nats above 0")
        with named("--config", config):
            loaded = load(config)
        path = _writable(record, loaded.settings.segments.record)
        for file in sample or ():
            if not file.is_file():  # before a model is loaded for it
                raise InvalidRequest(f"--sample: {file} is no file")
        reader, network = open_model(model, dtype, device, "MODEL")
        documents = _documents(reader, sample)
        with named("--sample"):
            found = sample_prompts(documents, segment=segment, question=question, prompts=prompts)
        try:
            namespace = identify(namespace_of_model(network, name=name), loaded)
            ways = list(plans_for(len(namespace.layout.planes)))
            with bar("comparing", len(ways), "ways") as progress:
                trials = measure(network, found, bound=bound, plans=ways, progress=progress)
        except LayoutMismatch as error:
            raise InvalidRequest(f"MODEL {model}: {error}") from error
        chosen = cheapest(trials, bound)
        made = None if chosen is None else record_of(chosen, found, namespace, bound)
        if made is not None:
            made.write(path)
    if as_json:
        print_json(
            {"record": made and asdict(made), "trials": [_report(trial) for trial in trials]}
        )
    else:
        _print(trials, chosen)
        if made is None:
            typer.echo(f"no way holds {bound:g} nats: a higher --bound, or none for this model")
        else:
            typer.echo(f"{path}: {made.share:.0%} of full computation, {made.kl:.2g} nats off")
    raise typer.Exit(0 if made is not None else 1)


def show(
    record: Annotated[Path, typer.Argument(help="A record of `hexkv blend calibrate`.")],
    as_json: Json = False,
) -> None:
    """Print the measurements of a model."""
    with called_well("nothing is printed"):
        found = BlendRecord.read(record)
        if found is None:
            raise InvalidRequest(f"{record}: there is no such file")
    if as_json:
        print_json(asdict(found))
        return
    values = asdict(found)
    values["versions"] = ", ".join(f"{name} {text}" for name, text in found.versions.items())
    print_table(["field", "value"], [(key, str(value)) for key, value in values.items()])


def _writable(given: Path | None, configured: str) -> Path:
    """The place of the record; refused before anything is computed."""
    if given is None and not configured:
        raise InvalidRequest("--record: give a file, or --config with segments.record")
    path = Path(configured) if given is None else given
    flag = "segments.record" if given is None else "--record"
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidRequest(f"{flag}: {path} is a folder, or lies in none")
    return path


def _documents(reader: Reader, sample: Sequence[Path] | None) -> list[list[int]]:
    if sample:
        with named("--sample"):
            return [document.tokens for path in sample for document in reader.read(path)]
    folder = Path(sysconfig.get_path("stdlib"))
    with named("no --sample is given, and Python's sources cannot be read"):
        return [document.tokens for name in _STAND_IN for document in reader.read(folder / name)]


def _report(trial: Trial) -> dict[str, object]:
    return {
        "selector": str(trial.plan.selector),
        "check_layer": trial.plan.check_layer,
        "ratio": trial.plan.ratio,
        "share": trial.share,
        "kl": trial.kl,
        "agreement": trial.agreement,
        "prompts": len(trial.means),
        "dropped": trial.dropped,
    }


def _print(trials: Sequence[Trial], chosen: Trial | None) -> None:
    """The ways that were measured to the end, from the cheapest."""
    print_table(
        ["", "selector", "check layer ", "ratio ", "computed ", "nats ", "agreement "],
        [
            (
                "->" if trial is chosen else "",
                str(trial.plan.selector),
                str(trial.plan.check_layer),
                f"{trial.plan.ratio:.0%}",
                f"{trial.share:.1%}",
                f"{trial.kl:.2g}",
                f"{trial.agreement:.1%}",
            )
            for trial in sorted(trials, key=lambda trial: trial.share)
            if not trial.dropped
        ],
    )
    dropped = sum(trial.dropped for trial in trials)
    typer.echo(f"{dropped} of the {len(trials)} ways that were tried are beyond the bound")


def run_blend(arguments: Sequence[str]) -> int:
    """``hexkv blend``, from a plugin's point of view."""
    app = new_app("What blending does to a model's answers: measure and record it.")
    app.command()(calibrate)
    app.command()(show)
    return run_app(app, "hexkv blend", arguments)
