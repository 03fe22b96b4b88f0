"""Tells hexkv about the lossy serdes. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from hexkv.plugins.spec import AdapterSpec, NoSettings, OpenContext, hookimpl

_CACHEGEN = {
    "cachegen": ("default", "29 levels in early layers, 15 in later ones: a quarter or less"),
    "cachegen-fine": ("fine", "63 levels in early layers, 29 in later ones: about a third"),
    "cachegen-small": ("small", "15 levels: a fifth or so"),
    "cachegen-tiny": ("tiny", "15 levels in early layers, 7 in later ones: a sixth or less"),
}


def _open_cachegen(level: str, settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
    from hexkv.adapters.cachegen.serde import DeviceSerde
    from hexkv.kernels.coding.choosing import Choice

    return DeviceSerde(CacheGen(LEVELS[level], Choice()))


def _open_int8(settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.cachegen.lowbit import Int8
    from hexkv.adapters.cachegen.serde import DeviceSerde
    from hexkv.kernels.coding.choosing import LowBitChoice

    return DeviceSerde(Int8(LowBitChoice()))


def _open_int4(settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.cachegen.lowbit import Int4
    from hexkv.adapters.cachegen.serde import LossySerde
    from hexkv.kernels.coding.choosing import LowBitChoice

    return LossySerde(Int4(LowBitChoice()))


def _open_fp8(settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.cachegen.lowbit import Float8
    from hexkv.adapters.cachegen.serde import LossySerde
    from hexkv.kernels.coding.choosing import LowBitChoice

    return LossySerde(Float8(LowBitChoice()))


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
    lowbit = [
        ("int8", "one byte an element, a scale per head and token", _open_int8),
        ("int4", "half a byte, scales per channel of K and per token of V", _open_int4),
        ("fp8", "one byte an element, float8_e4m3fn with a scale per channel", _open_fp8),
    ]
    found += [
        AdapterSpec("serde", name, summary, open_, requires=("numpy",), hint=hint, contract=2)
        for name, summary, open_ in lowbit
    ]
    return found
