"""Registers the observer of a process with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexkv.adapters.observe.settings import ServerSettings
from hexkv.plugins.spec import AdapterSpec, CommandSpec, OpenContext, hookimpl


def _open(settings: ServerSettings, context: OpenContext) -> object:
    from hexkv.adapters.observe.observer import ServerObserver

    return ServerObserver(settings, context.clock)


def _top(arguments: Sequence[str]) -> int:
    from hexkv.adapters.observe.cli.top import run

    return run(arguments)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "observe",
            "server",
            "metrics and health over HTTP, KV events over ZeroMQ",
            _open,
            ServerSettings,
            renamed={"traces_authorities": "traces_ca"},
            contract=2,
        )
    ]


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [CommandSpec("top", "Show what running caches do, live", _top)]
