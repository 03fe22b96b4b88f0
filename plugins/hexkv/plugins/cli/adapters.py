"""``hexkv adapters``: the installed plugins, and whether they can be used here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import typer

from hexkv.plugins.cli.output import Json, installed, new_app, print_json, print_table, run_app
from hexkv.plugins.discovery.registry import Registry, missing, unfit, words
from hexkv.plugins.spec import AdapterSpec, CommandSpec


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list."""

    kind: str
    name: str
    state: str
    summary: str
    plugin: str
    distribution: str
    contract: int | None = None
    """Version of the contracts that an adapter was written for."""


def rows(registry: Registry) -> list[Row]:
    """Adapters, commands and broken plugins, by kind and name."""
    found = []
    specs: list[AdapterSpec | CommandSpec] = [
        *registry.adapters.values(),
        *registry.commands.values(),
    ]
    for spec in specs:
        kind = spec.kind if isinstance(spec, AdapterSpec) else "command"
        state = unfit(spec) or "ready"
        hint = f" ({spec.hint})" if missing(spec) and spec.hint else ""
        origin = registry.origin[kind, spec.name]
        contract = spec.contract if isinstance(spec, AdapterSpec) else None
        about = spec.summary, origin.plugin, origin.distribution
        found.append(Row(kind, spec.name, state + hint, *about, contract))
    for origin, error in registry.broken.items():
        reason = words(error)
        found.append(
            Row("plugin", origin.plugin, "broken", reason, origin.plugin, origin.distribution)
        )
    return sorted(found, key=lambda row: (row.kind, row.name))


def adapters(as_json: Json = False) -> None:
    """List the installed adapters. Exit code 1 if a plugin is broken."""
    registry = installed()
    found = rows(registry)
    if as_json:
        print_json([asdict(row) for row in found])
    else:
        print_table(
            ["kind", "name", "state", "summary", "distribution", "contract "],
            [
                (
                    row.kind,
                    row.name,
                    row.state,
                    row.summary,
                    row.distribution,
                    "" if row.contract is None else str(row.contract),
                )
                for row in found
            ],
        )
    raise typer.Exit(1 if registry.broken else 0)


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("List the installed adapters.")
    app.command()(adapters)
    return run_app(app, "hexkv adapters", arguments)
