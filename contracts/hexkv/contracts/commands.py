"""Registers the kit's commands. hexkv imports it at discovery, so it imports little."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.plugins.spec import CommandSpec, hookimpl


def _check(arguments: Sequence[str]) -> int:
    from hexkv.contracts.check.command import run

    return run(arguments)


def _new_adapter(arguments: Sequence[str]) -> int:
    from hexkv.contracts.new_adapter import run

    return run(arguments)


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [
        CommandSpec("check", "Check an adapter against its contract", _check),
        CommandSpec(
            "new-adapter",
            "Make a package for an adapter of your own",
            _new_adapter,
            requires=("copier",),
            hint="pip install 'hexkv-contracts[new-adapter]'",
        ),
    ]
