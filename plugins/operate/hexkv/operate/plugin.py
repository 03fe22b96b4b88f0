"""Registers administration with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable

from hexkv.plugins.spec import AdapterSpec, NoSettings, OpenContext, hookimpl


def _verbs(_settings: NoSettings, _context: OpenContext) -> object:
    from hexkv.operate.opening import administer

    return administer


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [AdapterSpec("operate", "verbs", "operators' verbs over tiers", _verbs, contract=2)]
