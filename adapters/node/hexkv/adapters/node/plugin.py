"""Registers the node and its client with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hexkv.adapters.node.settings import ClientSettings, SharedSettings
from hexkv.plugins.spec import (
    AdapterSpec,
    CommandSpec,
    OpenContext,
    hookimpl,
)


def _open_shared(settings: SharedSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.node.memory import SharedMemory

    return SharedMemory(huge_pages=settings.huge_pages)


def _open_client(settings: ClientSettings, context: OpenContext) -> object:
    from hexkv.adapters.node.client.client import NodeClient

    return NodeClient(Path(settings.socket), context.clock)


def _node(arguments: Sequence[str]) -> int:
    from hexkv.adapters.node.command import run

    return run(arguments)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "memory",
            "shared",
            "memory that other processes map; on Linux",
            _open_shared,
            SharedSettings,
            contract=2,
        ),
        AdapterSpec(
            "node",
            "unix",
            "a node of this machine, by its socket",
            _open_client,
            ClientSettings,
            contract=2,
            black_box="hexkv.adapters.node.suite",
        ),
    ]


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [CommandSpec("node", "Serve one pool and its tiers to engines", _node)]
