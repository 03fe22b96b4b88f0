"""``hexkv config show``: the configuration that an engine built here would get."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path as FilePath
from typing import Annotated

import typer
import yaml
from pydantic import TypeAdapter

from hexkv.plugins.cli.from_lmcache import from_lmcache
from hexkv.plugins.cli.output import (
    Json,
    installed,
    named,
    new_app,
    print_json,
    print_table,
    run_app,
)
from hexkv.plugins.composition.checking import check
from hexkv.plugins.configuration.config import Loaded, load
from hexkv.plugins.configuration.places import Path, render
from hexkv.plugins.configuration.secret import HIDDEN
from hexkv.plugins.discovery.registry import Registry


def effective(loaded: Loaded, registry: Registry) -> dict[str, object]:
    """Return all values, including the defaults of adapters, without secrets.

    Raises:
        ConfigError: an adapter is not installed, or rejects its settings.
    """
    parsed = check(loaded, registry)
    tree: dict[str, object] = loaded.settings.model_dump(mode="json")
    tree["pool"] = loaded.settings.pool.model_dump() | {"settings": _shown(parsed.pool)}
    tree["tiers"] = [
        tier.model_dump(mode="json") | {"settings": _shown(settings)}
        for tier, settings in zip(loaded.settings.tiers, parsed.tiers, strict=True)
    ]
    if parsed.directory is not None:
        own = {"settings": _shown(parsed.directory)}
        tree["directory"] = loaded.settings.directory.model_dump(mode="json") | own
    if parsed.peers is not None:
        own = {"settings": _shown(parsed.peers)}
        tree["peers"] = loaded.settings.peers.model_dump(mode="json") | own
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
    values = effective(loaded, installed())
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


def _group() -> None:
    """Show the configuration, and where it comes from."""


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Show the configuration, and where it comes from.")
    app.callback()(_group)  # with it, the only command keeps its name
    app.command()(show)
    app.command()(from_lmcache)
    return run_app(app, "hexkv config", arguments)
