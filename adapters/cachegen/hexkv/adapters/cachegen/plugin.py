"""Registers the lossy serdes with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from hexkv.plugins.spec import AdapterSpec, NoSettings, OpenContext, hookimpl

_CACHEGEN = {
    "cachegen": ("default", "63 levels in early layers, 15 in later ones: a third or less"),
    "cachegen-fine": ("fine", "63 levels in early layers, 29 in later ones: a third or so"),
    "cachegen-small": ("small", "15 levels: a fifth or so"),
    "cachegen-tiny": ("tiny", "15 levels in early layers, 7 in later ones: a sixth or less"),
}


def _open_cachegen(level: str, settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
    from hexkv.adapters.cachegen.serde import LossySerde
    from hexkv.kernels.coding.choosing import Choice

    return LossySerde(CacheGen(LEVELS[level], Choice()))


def _open_lowbit(codec: str, settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.cachegen import lowbit
    from hexkv.adapters.cachegen.serde import LossySerde
    from hexkv.kernels.coding.choosing import LowBitChoice

    return LossySerde(lowbit.CODECS[codec](LowBitChoice()))


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    hint = "pip install hexkv-cachegen"
    found = [
        AdapterSpec(
            "serde",
            name,
            summary,
            partial(_open_cachegen, level),
            requires=("numpy",),
            hint=hint,
            contract=2,
        )
        for name, (level, summary) in _CACHEGEN.items()
    ]
    lowbit = (
        ("int8", "one byte an element, a scale per head and token"),
        ("int4", "half a byte, scales per channel of K and per token of V"),
        ("fp8", "one byte an element, float8_e4m3fn with a scale per channel"),
    )
    found += [
        AdapterSpec(
            "serde",
            name,
            summary,
            partial(_open_lowbit, name),
            requires=("numpy",),
            hint=hint,
            contract=2,
        )
        for name, summary in lowbit
    ]
    return found
