"""The commands: ``hexkv warm`` computes documents, ``hexkv tokens`` prints a prompt's tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.warm.computing import Warmed, Warmer
from hexkv.adapters.hf.warm.opening import bar, called_well, open_model, open_reader
from hexkv.plugins.cli.output import Json, named, new_app, print_json, print_table, run_app
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import InvalidRequest, LayoutMismatch

_STOPPED = "the same command goes on from here"

Model = Annotated[str, typer.Option("--model", help="A folder, or a name on the hub.")]
Files = Annotated[
    list[Path],
    typer.Argument(
        help="Texts; .json: token ids; .jsonl: a document in each line.", metavar="FILE..."
    ),
]


def warm(
    files: Files,
    model: Model,
    config: Annotated[Path | None, typer.Option(help="The configuration of the cache.")] = None,
    name: Annotated[str, typer.Option(help="What hosts that share the cache call the model.")] = "",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16; by default the checkpoint's.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
    at_once: Annotated[
        int, typer.Option(min=1, help="Tokens that are computed at a time, at least a chunk.")
    ] = 2048,
    as_json: Json = False,
) -> None:
    """Compute the KV of documents and store it, so that the first request for one hits.

    Stored chunks are not computed again, so the same command goes on where it was cut. Exit code
    0: all whole chunks of all documents are stored; 1: some are not.
    """
    with called_well(_STOPPED):
        with named("--config", config):
            loaded = load(config)
        if not loaded.settings.shared:
            raise InvalidRequest("--config: every tier is memory of this process: nothing stays")
        reader, network = open_model(model, dtype, device)
        documents = [document for path in files for document in reader.read(path)]
        total = sum(len(document.tokens) for document in documents)
        try:
            namespace = namespace_of_model(network, name=name)
        except LayoutMismatch as error:
            raise InvalidRequest(f"--model {model}: {error}") from error
        with build(loaded, namespace) as cache, bar("computing", total, "tokens") as progress:
            chunk = loaded.settings.chunk.size
            warmer = Warmer(network, cache, chunk=chunk, at_once=at_once, progress=progress)
            done = list(warmer.run(documents))
    if as_json:
        print_json(_report(done))
    else:
        _print(done)
    raise typer.Exit(0 if all(one.stored >= one.whole for one in done) else 1)


def tokens(file: Annotated[Path, typer.Argument(help="A document.")], model: Model) -> None:
    """Print the token ids of a document as JSON: a prompt for export and explain."""
    with called_well(_STOPPED):
        found = list(open_reader(model).read(file))
        if len(found) != 1:
            raise InvalidRequest(f"{file}: holds {len(found)} documents, not one")
    typer.echo(json.dumps(found[0].tokens))


def _report(done: Sequence[Warmed]) -> dict[str, object]:
    return {
        "documents": [asdict(one) for one in done],
        "tokens": sum(one.tokens for one in done),
        "known_tokens": sum(one.known for one in done),
        "stored_tokens": sum(one.stored for one in done),
        "missing_tokens": sum(max(0, one.whole - one.stored) for one in done),
    }


def _print(done: Sequence[Warmed]) -> None:
    print_table(
        ["document", "tokens ", "known before ", "stored "],
        [(one.name, str(one.tokens), str(one.known), str(one.stored)) for one in done],
    )
    missing = sum(one.stored < one.whole for one in done)
    if missing:
        typer.echo(f"{missing} of {len(done)} documents are not stored whole")


def run_warm(arguments: Sequence[str]) -> int:
    """``hexkv warm``, from a plugin's point of view."""
    app = new_app("Compute documents, so that the first request for one hits.")
    app.command()(warm)
    return run_app(app, "hexkv warm", arguments)


def run_tokens(arguments: Sequence[str]) -> int:
    """``hexkv tokens``, from a plugin's point of view."""
    app = new_app("Print the token ids of a document.")
    app.command()(tokens)
    return run_app(app, "hexkv tokens", arguments)
