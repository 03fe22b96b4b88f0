"""Registers the channel with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.adapters.shm.places import path_of
from hexkv.plugins.channels import ChannelSettings
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import AdapterSpec, OpenContext, about, hookimpl


@dataclass(frozen=True, slots=True)
class ShmSettings(ChannelSettings):
    """Settings of the channel ``shm``."""

    listen: FilePath = ""
    """The address at which peers are served: a path, ``@name``, or empty for a unique name."""

    mode: str = "0600"
    """The mode of the socket at a path."""

    users: tuple[int, ...] = ()
    """Numbers of users whose processes may be peers, beside this process's own and root."""

    @property
    def knows_peers(self) -> bool:
        return True  # a container of a pod has no socket unless it is mounted

    def __post_init__(self) -> None:
        ChannelSettings.__post_init__(self)
        if self.listen:
            with about("listen"):
                path_of(self.listen)
        with about("mode"):
            int(self.mode, 8)


def _open_shm(settings: ShmSettings, context: OpenContext) -> object:
    from hexkv.adapters.net.security import RotatedSecret
    from hexkv.adapters.net.server.connection import Limits
    from hexkv.adapters.shm.channel import ShmChannel

    return ShmChannel(
        context.clock,
        listen=settings.listen,
        name=settings.own_name(context),
        secret=settings.shared_secret(RotatedSecret),
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
