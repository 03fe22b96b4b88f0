"""Tells hexkv about the channel. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.adapters.shm.places import path_of
from hexkv.plugins.secret import NO_SECRET, Secret
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl


@dataclass(frozen=True, slots=True)
class ShmSettings:
    """Settings of the channel ``shm``."""

    listen: str = ""
    """Where peers are served: a path, ``@name``, or empty for a name of its own."""

    mode: str = "0600"
    """Of the socket at a path."""

    users: tuple[int, ...] = ()
    """Numbers of users whose processes may be peers, beside this process's own and root."""

    name: str = ""
    """Of this peer, for the others. At most 64 bytes."""

    secret: Secret = NO_SECRET
    """What all peers know; the system says which user a peer is, also without one."""

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
        if self.listen:
            with about("listen"):
                path_of(self.listen)
        with about("mode"):
            int(self.mode, 8)
        if len(self.name.encode()) > 64:
            raise SettingError("name", "must have at most 64 bytes")
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        for name in ("connections", "clients", "max_frame"):
            if getattr(self, name) < 1:
                raise SettingError(name, "must be at least 1")
        if not self.patience > 0:
            raise SettingError("patience", "must be more than 0")


def _open_shm(settings: ShmSettings, context: OpenContext) -> object:
    from hexkv.adapters.net.connection import Limits
    from hexkv.adapters.net.security import read_secret
    from hexkv.adapters.shm.channel import ShmChannel

    secret = settings.secret.reveal().encode()
    if settings.secret_file:
        with about("secret_file"):
            secret = read_secret(settings.secret_file)
    return ShmChannel(
        context.clock,
        listen=settings.listen,
        name=settings.name,
        secret=secret,
        users=settings.users,
        mode=int(settings.mode, 8),
        limits=Limits(settings.max_frame, patience=settings.patience),
        connections=settings.connections,
        clients=settings.clients,
    )


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "channel",
            "shm",
            "chunks between peers of one machine, copied out of each other's memory; on Linux",
            _open_shm,
            ShmSettings,
            contract=2,
        )
    ]
