"""Registers ``hexkv fleet`` with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.plugins.spec import CommandSpec, hookimpl


def _fleet(arguments: Sequence[str]) -> int:
    from hexkv.fleet.cli.fleet import run

    return run(arguments)


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [CommandSpec("fleet", "Look into all nodes of a fleet, and act on them", _fleet)]
