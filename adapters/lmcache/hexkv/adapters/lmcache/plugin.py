"""Registers LMCache's wire with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hexkv.adapters.net.address import Address
from hexkv.plugins.spec import (
    AdapterSpec,
    BackDoor,
    CommandSpec,
    NoSettings,
    OpenContext,
    SettingError,
    about,
    hookimpl,
)


@dataclass(frozen=True, slots=True)
class LMSettings:
    """Settings of the store ``lm``."""

    address: str
    """``lm://host:port`` of a server that speaks the wire."""

    connections: int = 4
    """The most calls under way at a time; others wait."""

    def __post_init__(self) -> None:
        with about("address"):
            Address.of_url(self.address, "lm")
        if self.connections < 1:
            raise SettingError("connections", "must be at least 1")


def _open_store(settings: LMSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.lmcache.store import LMStore

    return LMStore(Address.of_url(settings.address, "lm"), connections=settings.connections)


def _open_wire(settings: NoSettings, context: OpenContext) -> object:
    del settings, context
    from hexkv.adapters.lmcache.session import LMWire

    return LMWire()


def _back_door(settings: LMSettings) -> BackDoor:
    from hexkv.adapters.lmcache.back_door import LMDoor

    return LMDoor(Address.of_url(settings.address, "lm"))


def _from_lmcache(arguments: Sequence[str]) -> int:
    from hexkv.adapters.lmcache.configuration import run

    return run(arguments)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "lm",
            "an LMCache server, lm://",
            _open_store,
            LMSettings,
            schemes=("lm",),
            back_door=_back_door,
            isolate="keys",
            black_box="hexkv.adapters.lmcache.suite",
            contract=2,
        ),
        AdapterSpec(
            "wire", "lm", "LMCache's lm://, for `hexkv serve` to speak", _open_wire, contract=2
        ),
    ]


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [CommandSpec("config.from-lmcache", "Convert a configuration of LMCache", _from_lmcache)]
