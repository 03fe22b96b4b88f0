"""Registers the adapter with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable

from hexkv.adapters.sglang.settings import SGLangSettings
from hexkv.plugins.spec import AdapterSpec, OpenContext, hookimpl
from hexkv.ports import ConfigError


def _open(settings: SGLangSettings, context: OpenContext) -> object:
    del settings, context
    raise ConfigError("SGLang builds this adapter itself: --hicache-storage-backend dynamic")


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "device",
            "sglang",
            "SGLang's KV memory, as a storage backend of HiCache or as an external linker",
            _open,
            SGLangSettings,
            requires=("sglang", "torch"),
            hint="pip install hexkv-sglang into the environment of SGLang",
            contract=2,
        )
    ]
