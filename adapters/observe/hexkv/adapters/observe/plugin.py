"""Registers the observer of a process with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable

from hexkv.adapters.observe.settings import ServerSettings
from hexkv.plugins.spec import AdapterSpec, OpenContext, hookimpl


def _open(settings: ServerSettings, context: OpenContext) -> object:
    from hexkv.adapters.observe.observer import ServerObserver

    return ServerObserver(settings, context.clock)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "observe",
            "server",
            "metrics and health over HTTP, KV events over ZeroMQ",
            _open,
            ServerSettings,
            contract=2,
        )
    ]
