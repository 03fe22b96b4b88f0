"""Registers the opening of peers with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable

from hexkv.plugins.spec import AdapterSpec, NoSettings, OpenContext, hookimpl


def _service(_settings: NoSettings, _context: OpenContext) -> object:
    from hexkv.peers.opening import open_peers

    return open_peers


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "peers",
            "service",
            "serves chunks to peers, reports to directories",
            _service,
            contract=2,
        )
    ]
