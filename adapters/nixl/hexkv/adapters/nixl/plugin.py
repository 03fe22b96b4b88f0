"""Tells hexkv about the channel. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.adapters.net.address import Address
from hexkv.plugins.secret import NO_SECRET, Secret
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl


@dataclass(frozen=True, slots=True)
class NixlSettings:
    """Settings of the channel ``nixl``. Which network it takes is UCX's own choice."""

    listen: str = "127.0.0.1:0"
    """Where peers agree on what is read; port 0 takes a free one."""

    advertise: str = ""
    """The host by which peers reach this one, if it is not that of *listen*."""

    name: str = ""
    """Of this peer, for the others. At most 64 bytes."""

    secret: Secret = NO_SECRET
    """What all peers know."""

    secret_file: str = ""
    """A file that holds the secret instead, mode 0600."""

    connections: int = 4
    """Calls under way to a peer at a time; others wait."""

    clients: int = 64
    """Connections of peers that are served at a time."""

    max_frame: int = 256 << 20
    """Bytes of a frame, and of all frames that a connection has leased at a time."""

    patience: float = 10.0
    """Seconds that a peer may have frames leased, beside 1 s for each 8 MB."""

    def __post_init__(self) -> None:
        with about("listen"):
            Address.listening(self.listen)
        if len(self.name.encode()) > 64:
            raise SettingError("name", "must have at most 64 bytes")
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        for name in ("connections", "clients", "max_frame"):
            if getattr(self, name) < 1:
                raise SettingError(name, "must be at least 1")
        if not self.patience > 0:
            raise SettingError("patience", "must be more than 0")


def _open_nixl(settings: NixlSettings, context: OpenContext) -> object:
    from hexkv.adapters.net.connection import Limits
    from hexkv.adapters.net.peers.over_tcp import Security
    from hexkv.adapters.net.security import read_secret
    from hexkv.adapters.nixl.channel import NixlChannel

    secret = settings.secret.reveal().encode()
    if settings.secret_file:
        with about("secret_file"):
            secret = read_secret(settings.secret_file)
    return NixlChannel(
        Address.listening(settings.listen),
        context.clock,
        name=settings.name,
        advertise=settings.advertise,
        security=Security(secret),
        limits=Limits(settings.max_frame, patience=settings.patience),
        connections=settings.connections,
        clients=settings.clients,
    )


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "channel",
            "nixl",
            "chunks between peers by NIXL and UCX, which takes RDMA where there is any",
            _open_nixl,
            NixlSettings,
            contract=2,
        )
    ]
