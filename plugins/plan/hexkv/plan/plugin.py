"""Registers the planning commands with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.plugins.spec import CommandSpec, hookimpl


def _bench(arguments: Sequence[str]) -> int:
    from hexkv.plan.cli.bench import run

    return run(arguments)


def _plan(arguments: Sequence[str]) -> int:
    from hexkv.plan.cli.plan import run

    return run(arguments)


def _report(arguments: Sequence[str]) -> int:
    from hexkv.plan.cli.report import run

    return run(arguments)


def _serdes(arguments: Sequence[str]) -> int:
    from hexkv.plan.cli.serdes import run

    return run(arguments)


def _size(arguments: Sequence[str]) -> int:
    from hexkv.plan.cli.size import run

    return run(arguments)


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [
        CommandSpec("bench", "Measure the rates of the configured tiers", _bench),
        CommandSpec("plan", "Replay a trace through policies and sizes", _plan),
        CommandSpec("report", "Say what a recorded cache did, and what more room brings", _report),
        CommandSpec("serdes", "Measure serdes, and say what to load over which link", _serdes),
        CommandSpec("size", "Compute what a cache of a model and its traffic takes", _size),
    ]
