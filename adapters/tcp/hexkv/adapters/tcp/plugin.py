"""Registers the channel with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hexkv.adapters.net.address import Address
from hexkv.plugins.channels import ChannelSettings
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl

if TYPE_CHECKING:
    from hexkv.adapters.tcp.channel import Security


@dataclass(frozen=True, slots=True)
class TcpSettings(ChannelSettings):
    """Settings of the channel ``tcp``."""

    listen: str = "127.0.0.1:0"
    """The address at which peers are served; port 0 takes a free one."""

    advertise: str = ""
    """The host by which peers reach this one, if it is not that of *listen*."""

    tls: bool = False
    """Encrypt, with TLS 1.3. Peers' certificates must be valid for the hosts of their addresses."""

    tls_certificate: FilePath = ""
    """A file with this peer's certificate and key."""

    tls_ca: FilePath = ""
    """A file of the authorities that sign peers' certificates. A peer without one is refused."""

    @property
    def knows_peers(self) -> bool:
        return self.tls or bool(self.secret or self.secret_file)

    def __post_init__(self) -> None:
        ChannelSettings.__post_init__(self)
        with about("listen"):
            Address.listening(self.listen)
        if self.tls != bool(self.tls_certificate and self.tls_ca):
            raise SettingError("tls", "takes tls_certificate and tls_ca, and they take tls")


def _security_of(settings: TcpSettings) -> Security:
    from hexkv.adapters.net.security import RotatedSecret
    from hexkv.adapters.net.tls import Trust, server_context
    from hexkv.adapters.tcp.channel import Security

    secret = settings.shared_secret(RotatedSecret)
    if not settings.tls:
        return Security(secret)
    certificate, authorities = settings.tls_certificate, settings.tls_ca
    client = Trust(authorities, certificate, newest=True).context()
    return Security(secret, client, server_context(certificate, authorities))


def _open_tcp(settings: TcpSettings, context: OpenContext) -> object:
    from hexkv.adapters.net.server.connection import Limits
    from hexkv.adapters.tcp.channel import TcpChannel

    return TcpChannel(
        Address.listening(settings.listen),
        context.clock,
        name=settings.own_name(context),
        advertise=settings.advertise,
        security=_security_of(settings),
        limits=Limits(settings.max_frame, patience=settings.patience),
        connections=settings.connections,
        clients=settings.clients,
    )


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "channel", "tcp", "chunks between peers over TCP", _open_tcp, TcpSettings, contract=2
        )
    ]
