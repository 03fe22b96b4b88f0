"""``hexkv config``: the configuration of an engine here, shown, checked, described, converted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path as FilePath
from typing import Annotated

import typer
import yaml
from pydantic import TypeAdapter

from hexkv.plugins.cli.output import (
    Json,
    add_command,
    aside,
    human_size,
    installed,
    named,
    new_app,
    offered,
    print_json,
    print_table,
    run_app,
)
from hexkv.plugins.composition.checking import check, doubts, lacking
from hexkv.plugins.composition.compose import build, check_sizes
from hexkv.plugins.configuration.config import Loaded, load
from hexkv.plugins.configuration.for_editors import schema_of
from hexkv.plugins.configuration.places import Path, render
from hexkv.plugins.configuration.schema import OF_A_NODE
from hexkv.plugins.configuration.secret import HIDDEN
from hexkv.plugins.configuration.section import WITH_UNITS
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.support.available import available_bytes
from hexkv.ports import ConfigError, DType, HexKVError, KVLayout, Namespace, frame_bytes


def effective(
    loaded: Loaded, registry: Registry, units: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Return all values, including the defaults of adapters, without secrets.

    Sizes are numbers, or with :data:`WITH_UNITS` texts.

    Raises:
        ConfigError: an adapter is not installed, or rejects its settings.
    """
    parsed = check(loaded, registry)
    tree: dict[str, object] = loaded.settings.model_dump(mode="json", context=units)
    if loaded.settings.node:  # which has the others
        tree = {name: value for name, value in tree.items() if name not in OF_A_NODE}
        return tree | {"observe": {} if parsed.observe is None else _shown(parsed.observe)}
    tree["pool"] = loaded.settings.pool.model_dump(context=units) | {
        "settings": _shown(parsed.pool)
    }
    tree["tiers"] = [
        tier.model_dump(mode="json", context=units) | {"settings": _shown(settings)}
        for tier, settings in zip(loaded.settings.tiers, parsed.tiers, strict=True)
    ]
    if parsed.directory is not None:
        own = {"settings": _shown(parsed.directory)}
        tree["directory"] = loaded.settings.directory.model_dump(mode="json", context=units) | own
    if parsed.peers is not None:
        own = {"settings": _shown(parsed.peers)}
        tree["peers"] = loaded.settings.peers.model_dump(mode="json", context=units) | own
    tree["admin"] = {} if parsed.admin is None else _shown(parsed.admin)
    tree["observe"] = {} if parsed.observe is None else _shown(parsed.observe)
    return tree


def _shown(settings: object) -> dict[str, object]:
    values: dict[str, object] = json.loads(TypeAdapter(type(settings)).dump_json(settings))
    hidden = [field.name for field in fields(settings) if not field.repr]  # type: ignore[arg-type]
    return values | {name: HIDDEN for name in hidden if values[name]}


def _leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def show(
    config: Annotated[
        FilePath | None, typer.Option(help="A YAML file instead of the one HEXKV_CONFIG names.")
    ] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each comes from.")] = False,
    as_json: Json = False,
) -> None:
    """Show the configuration that an engine built here would get."""
    with named("--config", config):
        loaded = load(config)
    values = effective(loaded, installed(), None if as_json else WITH_UNITS)
    if origin:
        listed = [(path, value, loaded.origin(path)) for path, value in _leaves(values)]
        if as_json:
            print_json({render(p): {"value": v, "origin": where} for p, v, where in listed})
        else:
            rows = [(render(path), json.dumps(value), where) for path, value, where in listed]
            print_table(["key", "value", "origin"], rows)
    elif as_json:
        print_json(values)
    else:
        typer.echo(yaml.safe_dump(values, sort_keys=False).rstrip())


def check_file(
    file: Annotated[FilePath, typer.Argument(help="A YAML file.", show_default=False)],
    opens: Annotated[
        bool, typer.Option("--open", help="Open stores and listeners, too, and close them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a configuration. Exit code 1 if an engine could not start with it here.

    The environment's HEXKV_* count, as at a start. Without --open nothing is opened or created.
    """
    wrong, doubted = problems(file, installed(), opens=opens)
    if as_json:
        print_json({"problems": wrong, "doubts": doubted})
    else:
        for text in wrong:
            typer.echo(f"error: {text}", err=True)
        for text in doubted:
            typer.echo(f"warning: {text}", err=True)
        if not wrong:
            typer.echo("no problem")
    raise typer.Exit(1 if wrong else 0)


def problems(
    file: FilePath, registry: Registry, *, opens: bool = False
) -> tuple[list[str], list[str]]:
    """Return the reasons why no engine can start with *file* here, and what has no effect in it."""
    try:
        loaded = load(file)
        check(loaded, registry)
        if not loaded.settings.node:
            check_sizes(loaded, frame_bytes(_TOY.layout.chunk_bytes(loaded.settings.chunk.size)))
    except ConfigError as error:
        return [" ".join(str(error).split())], []
    wrong = [f"{loaded.locate(place)}: {why}" for place, why in lacking(loaded, registry)]
    settings = loaded.settings
    if not settings.node and settings.pool.bytes > (most := available_bytes()):
        where = loaded.locate(("pool", "bytes"))
        wrong.append(f"{where}: more than the {human_size(most)} of memory that are available")
    if opens and not wrong:
        try:
            with aside(), build(loaded, _TOY, registry=registry):
                pass
        except HexKVError as error:
            wrong.append(" ".join(str(error).split()))
    return wrong, doubts(loaded)


_TOY = Namespace(
    "hexkv config check", KVLayout.attention(DType.UINT8, layers=1, heads=1, key_width=1)
)


def schema() -> None:
    """Print the JSON schema of a configuration, with the settings of the installed adapters."""
    print_json(schema_of(installed().adapters))


def _group() -> None:
    """Show, check or convert a configuration."""


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Show the configuration, and where it comes from.")
    app.callback()(_group)  # with it, the only command keeps its name
    app.command()(show)
    app.command("check")(check_file)
    app.command()(schema)
    for name, verb in offered(installed()).items():
        command, dot, word = name.partition(".")
        if dot and command == "config":
            add_command(app, word, verb)
    return run_app(app, "hexkv config", arguments)
