"""Registers administration from outside with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.adapters.admin.settings import SocketSettings
from hexkv.plugins.spec import AdapterSpec, CommandSpec, OpenContext, hookimpl


def _open(settings: SocketSettings, context: OpenContext) -> object:
    from hexkv.adapters.admin.access import SocketAccess

    return SocketAccess(settings, context.clock)


def _admin(arguments: Sequence[str]) -> int:
    from hexkv.adapters.admin.cli.command import run

    return run(arguments)


def _trace(arguments: Sequence[str]) -> int:
    from hexkv.adapters.admin.cli.trace import run

    return run(arguments)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "admin",
            "socket",
            "administration over a Unix socket or TCP",
            _open,
            SocketSettings,
            contract=2,
        )
    ]


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [
        CommandSpec("admin", "Look into a running cache, and act on it", _admin),
        CommandSpec("trace", "Write what took time in a running cache, as a picture", _trace),
    ]
