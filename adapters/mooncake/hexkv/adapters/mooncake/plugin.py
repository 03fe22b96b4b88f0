"""Registers Mooncake with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hexkv.adapters.net.address import Address
from hexkv.plugins.channels import ChannelSettings
from hexkv.plugins.spec import (
    AdapterSpec,
    BackDoor,
    OpenContext,
    SettingError,
    about,
    hookimpl,
)

if TYPE_CHECKING:
    from hexkv.adapters.mooncake._rehearsal import SetupArguments

_ADDRESS = re.compile(r"(?:mooncake://)?([^/\s@:]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})/?")


@dataclass(frozen=True, slots=True)
class MooncakeSettings:
    """Settings of the store ``mooncake``."""

    address: str = "127.0.0.1:50051"
    """Of the master: ``host:port``, also as ``mooncake://host:port``."""

    metadata: str = "P2PHANDSHAKE"
    """The metadata service of nodes: ``P2PHANDSHAKE`` for no server, or the server's URL."""

    local_host: str = "127.0.0.1"
    """This machine's name for other nodes: for segments and RDMA."""

    protocol: Literal["tcp", "rdma"] = "tcp"
    devices: str = ""
    """RDMA devices, separated by commas; empty for all."""

    segment_bytes: int = 0
    """Memory of this machine that the store uses for chunks of all nodes; 0 for a mere client."""

    buffer_bytes: int = 16 << 20
    """Memory of Mooncake's own, for its small calls."""

    staging_bytes: int = 128 << 20
    """Memory for frames that are not in the pool: those encoded by a serde."""

    replicas: int = 1
    """The number of nodes that keep a chunk, if there are that many."""

    pin: bool = False
    """True: the master never evicts a chunk, so a full store stays full."""

    prefix: str = "hexkv:"
    """Of every object's name."""

    connect_timeout: float = 10.0
    """Seconds after which an attempt to connect is given up."""

    call_timeout: float = 5.0
    """Seconds to wait for the master, if the call's deadline is not earlier."""

    def __post_init__(self) -> None:
        found = _ADDRESS.fullmatch(self.address)
        if found is None or not 0 < int(found[2]) < 65536:
            raise SettingError("address", "is no host:port")
        if self.metadata != "P2PHANDSHAKE" and "://" not in self.metadata:
            raise SettingError("metadata", "is P2PHANDSHAKE, or a URL")
        if "@" in self.metadata:  # it is printed, and would contain a password
            raise SettingError("metadata", "has no user and no password in it")
        for name in ("segment_bytes", "buffer_bytes", "staging_bytes"):
            if getattr(self, name) < 0:
                raise SettingError(name, "is not negative")
        if not 1 <= self.replicas <= 64:
            raise SettingError("replicas", "must be 1 to 64")
        for name in ("connect_timeout", "call_timeout"):
            if not 0 < getattr(self, name) <= 3600:
                raise SettingError(name, "is more than nothing, and an hour at most")

    @property
    def master(self) -> str:
        """The master's ``host:port``."""
        return self.address.removeprefix("mooncake://").rstrip("/")


@dataclass(frozen=True, slots=True)
class EngineSettings(ChannelSettings):
    """Settings of the channel ``mooncake``."""

    listen: str = "127.0.0.1:0"
    """The address where peers negotiate reads; port 0 takes a free one."""

    advertise: str = ""
    """The host by which peers reach this one, if it is not that of *listen*."""

    protocol: Literal["tcp", "rdma"] = "tcp"
    devices: str = ""
    """RDMA devices, separated by commas; empty for all."""

    def __post_init__(self) -> None:
        ChannelSettings.__post_init__(self)
        with about("listen"):
            Address.listening(self.listen)


def _open_channel(settings: EngineSettings, context: OpenContext) -> object:
    from hexkv.adapters.mooncake.channel import EngineMemory, MooncakeChannel
    from hexkv.adapters.net.peers.channel import Security
    from hexkv.adapters.net.security import RotatedSecret
    from hexkv.adapters.net.server.connection import Limits

    listen = Address.listening(settings.listen)
    host = settings.advertise or listen.host
    return MooncakeChannel(
        listen,
        context.clock,
        EngineMemory(host, settings.protocol, settings.devices),
        name=settings.own_name(context),
        advertise=settings.advertise,
        security=Security(settings.shared_secret(RotatedSecret)),
        limits=Limits(settings.max_frame, patience=settings.patience),
        connections=settings.connections,
        clients=settings.clients,
    )


def _open(settings: MooncakeSettings, context: OpenContext) -> object:
    from hexkv.adapters.mooncake._connection import RetriedConnection
    from hexkv.adapters.mooncake._native import library
    from hexkv.adapters.mooncake.store import MooncakeStore

    mooncake = library()
    config = mooncake.ReplicateConfig()
    config.replica_num = settings.replicas
    config.with_hard_pin = settings.pin
    place = _place(settings, settings.segment_bytes)
    return MooncakeStore(
        RetriedConnection(place, mooncake, context.clock, settings.connect_timeout),
        config,
        prefix=settings.prefix,
        call_timeout=settings.call_timeout,
        staging_bytes=settings.staging_bytes,
    )


def _back_door(settings: MooncakeSettings) -> BackDoor:
    from hexkv.adapters.mooncake._native import library
    from hexkv.adapters.mooncake.back_door import MooncakeDoor

    client = library().MooncakeDistributedStore()
    _place(settings, 0).enter(client, 0)
    return MooncakeDoor(client, settings.prefix)


def _place(settings: MooncakeSettings, segment_bytes: int) -> SetupArguments:
    from hexkv.adapters.mooncake._rehearsal import SetupArguments

    return SetupArguments(
        settings.master,
        settings.metadata,
        settings.local_host,
        settings.protocol,
        settings.devices,
        segment_bytes,
        settings.buffer_bytes,
    )


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "mooncake",
            "Mooncake: chunks in the memory of many machines, over TCP or RDMA",
            _open,
            MooncakeSettings,
            requires=("mooncake",),
            hint="pip install hexkv-mooncake[tcp], or [cuda] where CUDA is",
            schemes=("mooncake",),
            back_door=_back_door,
            isolate={"prefix": "prefix"},
            contract=2,
        ),
        AdapterSpec(
            "channel",
            "mooncake",
            "chunks between peers by Mooncake's transfer engine, over TCP or RDMA",
            _open_channel,
            EngineSettings,
            requires=("mooncake",),
            hint="pip install hexkv-mooncake[tcp], or [cuda] where CUDA is",
            contract=2,
        ),
    ]
