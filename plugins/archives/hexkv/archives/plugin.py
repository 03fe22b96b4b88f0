"""Registers the commands of archives with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.plugins.spec import CommandSpec, hookimpl


def _export(arguments: Sequence[str]) -> int:
    from hexkv.archives.command import run_export

    return run_export(arguments)


def _import(arguments: Sequence[str]) -> int:
    from hexkv.archives.command import run_import

    return run_import(arguments)


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [
        CommandSpec("export", "Write chunks of tiers into an archive", _export),
        CommandSpec("import", "Put the chunks of an archive on tiers", _import),
    ]
