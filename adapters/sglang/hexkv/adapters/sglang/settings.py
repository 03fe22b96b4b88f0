"""How hexkv works under SGLang: the part of its extra configuration that is the adapter's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hexkv.plugins.spec import SettingError


@dataclass(frozen=True, slots=True)
class SGLangSettings:
    """How hexkv works under SGLang. The engine has a configuration of its own."""

    read: bool = True
    """Give stored KV to SGLang."""

    write: bool = True
    """Store the KV that SGLang gives."""

    namespace: Literal["own", "canonical"] = "own"
    """The chunks that are found: those of SGLang with equal settings; or also those of other
    engines, where everything agrees that changes the numbers."""

    layout: Literal["auto", "opaque"] = "auto"
    """Chunks that other engines can use, where SGLang's pages are understood; or its pages as
    they are, always."""

    hold_bytes: int | None = None
    """KV in the pool that the linker's loads hold at most, on its way into the device. By default
    half of the pool, which is the most."""

    def __post_init__(self) -> None:
        if self.hold_bytes is not None and self.hold_bytes < 1:
            raise SettingError("hold_bytes", "must be at least 1")
        if self.namespace == "canonical" and self.layout == "opaque":
            raise SettingError(
                "namespace", "must be 'own': opaque pages mean nothing to other engines"
            )
