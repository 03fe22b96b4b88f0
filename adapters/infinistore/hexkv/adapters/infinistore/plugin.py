"""Registers InfiniStore with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, hookimpl

_ADDRESS = re.compile(r"(?:infinistore://)?([^/\s@:]+):([0-9]{1,5})/?")


@dataclass(frozen=True, slots=True)
class InfiniStoreSettings:
    """Settings of the store ``infinistore``."""

    address: str = "127.0.0.1:12345"
    """The server: ``host:port``, also as ``infinistore://host:port``."""

    prefix: str = "hexkv:"
    """Of every key."""

    connections: int = 8
    """Calls under way at a time; each has a thread and a connection."""

    def __post_init__(self) -> None:
        found = _ADDRESS.fullmatch(self.address)
        if found is None or not 0 < int(found[2]) < 65536:
            raise SettingError("address", "is no host:port")
        if not re.fullmatch(r"[\x21-\x7e]{0,128}", self.prefix):
            raise SettingError("prefix", "has at most 128 printable characters, and no space")
        if not 1 <= self.connections <= 256:
            raise SettingError("connections", "are from 1 to 256")

    @property
    def server(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.removeprefix("infinistore://").rstrip("/").rpartition(":")
        return host, int(port)


def _open(settings: InfiniStoreSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.infinistore.client import connecting
    from hexkv.adapters.infinistore.store import InfiniStore

    connect = connecting(*settings.server)
    return InfiniStore(connect, settings.prefix, settings.connections)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "infinistore",
            "InfiniStore, by its client over TCP",
            _open,
            InfiniStoreSettings,
            requires=("infinistore",),
            hint="pip install hexkv-infinistore[client]",
            schemes=("infinistore",),
            isolate={"prefix": "prefix"},
            contract=2,
        )
    ]
