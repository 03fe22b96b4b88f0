"""Registers the cache of segments with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable

from hexkv.plugins.spec import AdapterSpec, NoSettings, OpenContext, hookimpl


def _open(settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.blending.segments import build

    return build


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "segments",
            "anywhere",
            "segments between separators, or at any offset of a prompt",
            _open,
            contract=2,
        )
    ]
