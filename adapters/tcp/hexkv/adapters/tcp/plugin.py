"""Tells hexkv about the channel. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hexkv.adapters.net.address import Address
from hexkv.plugins.secret import NO_SECRET, Secret
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl

if TYPE_CHECKING:
    from hexkv.adapters.tcp.channel import Security


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """Settings of the channel ``tcp``."""

    listen: str = "127.0.0.1:0"
    """Where peers are served; port 0 takes a free one."""

    advertise: str = ""
    """The host by which peers reach this one, if it is not that of *listen*."""

    name: str = ""
    """Of this peer, for the others. At most 64 bytes. Empty: the end of what the process is called
    in the directory."""

    secret: Secret = NO_SECRET
    """What all peers know."""

    secret_file: str = ""
    """A file that holds the secret instead, mode 0600."""

    tls: bool = False
    """Encrypt, with TLS 1.3. Peers' certificates must be good for the hosts of their addresses."""

    tls_certificate: str = ""
    """A file with this peer's certificate and key."""

    tls_ca: str = ""
    """A file of the authorities that sign peers' certificates. Who has none of theirs stays out."""

    connections: int = 4
    """Calls under way to a peer at a time; others wait."""

    clients: int = 64
    """Connections of peers that are served at a time."""

    max_frame: int = 256 << 20
    """Bytes of a frame, and of all frames that a connection receives at a time."""

    patience: float = 10.0
    """Seconds that a peer is waited for, beside 1 s for each 8 MB that it sends or takes."""

    def __post_init__(self) -> None:
        with about("listen"):
            Address.listening(self.listen)
        if len(self.name.encode()) > 64:
            raise SettingError("name", "must have at most 64 bytes")
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        if self.tls != bool(self.tls_certificate and self.tls_ca):
            raise SettingError("tls", "takes tls_certificate and tls_ca, and they take tls")
        for name in ("connections", "clients", "max_frame"):
            if getattr(self, name) < 1:
                raise SettingError(name, "must be at least 1")
        if not self.patience > 0:
            raise SettingError("patience", "must be more than 0")


def _end_of(name: str) -> str:
    """As much of *name* as a channel says, from its end, which has the process."""
    return name.encode()[-64:].decode(errors="ignore")


def _security_of(settings: TcpSettings) -> Security:
    from hexkv.adapters.net.security import read_secret
    from hexkv.adapters.net.tls import Trust, server_context
    from hexkv.adapters.tcp.channel import Security

    if settings.secret_file:
        with about("secret_file"):
            secret = read_secret(settings.secret_file)
    else:
        secret = settings.secret.reveal().encode()
    if not settings.tls:
        return Security(secret)
    certificate, authorities = settings.tls_certificate, settings.tls_ca
    client = Trust(authorities, certificate, newest=True).context(setting="tls_ca")
    return Security(secret, client, server_context(certificate, authorities))


def _open_tcp(settings: TcpSettings, context: OpenContext) -> object:
    from hexkv.adapters.net.connection import Limits
    from hexkv.adapters.tcp.channel import TcpChannel

    return TcpChannel(
        Address.listening(settings.listen),
        context.clock,
        name=settings.name or _end_of(context.name),
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
