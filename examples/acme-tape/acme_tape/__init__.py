"""Tells hexkv about the tape. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.plugins import AdapterSpec, OpenContext, SettingError, hookimpl


@dataclass(frozen=True, slots=True)
class TapeSettings:
    """Settings of the store ``tape``."""

    length: int = 1 << 30
    """How many bytes the tape holds."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise SettingError("length", "a tape holds at least one byte")


def _open_tape(settings: TapeSettings, context: OpenContext) -> object:
    from acme_tape.store import TapeStore

    return TapeStore({}, settings.length, context.clock)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    yield AdapterSpec(
        "store",
        "tape",
        "an imaginary tape",
        _open_tape,
        TapeSettings,
        isolate={},  # each tape that is opened is another one
        contract=2,
    )
