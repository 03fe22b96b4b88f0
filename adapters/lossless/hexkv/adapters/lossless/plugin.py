"""Registers the lossless serdes with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.plugins.spec import AdapterSpec, NoSettings, OpenContext, SettingError, hookimpl

_LEVELS = range(23)


@dataclass(frozen=True, slots=True)
class ZstdSettings:
    """Settings of the serde ``zstd``."""

    level: int = 0
    """How hard to look for repetition, of which KV has little: zstd's levels 1 to 22, or 0 for
    next to not at all, which is three times as fast as 1."""

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise SettingError("level", f"is not between {_LEVELS[0]} and {_LEVELS[-1]}")


def _open_zstd(settings: ZstdSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.lossless.zstd import ZstdSerde

    return ZstdSerde(settings.level)


def _open_rans(settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.lossless.rans import RansSerde
    from hexkv.kernels.coding.choosing import Choice

    return RansSerde(Choice())


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "serde",
            "zstd",
            "byte planes, then zstd: every bit comes back",
            _open_zstd,
            ZstdSettings,
            requires=("numpy", "zstandard"),
            hint="pip install hexkv-lossless",
            contract=2,
        ),
        AdapterSpec(
            "serde",
            "rans",
            "exponents by interleaved rANS, which GPUs can decode: every bit comes back",
            _open_rans,
            requires=("numpy", "hexkv.kernels"),
            hint="pip install hexkv-lossless[rans]",
            contract=2,
        ),
    ]
