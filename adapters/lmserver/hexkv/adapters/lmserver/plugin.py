"""Registers the server and its client with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hexkv.adapters.net.address import Address
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import (
    AdapterSpec,
    BackDoor,
    CommandSpec,
    OpenContext,
    SettingError,
    about,
    hookimpl,
)

if TYPE_CHECKING:
    from ssl import SSLContext

    from hexkv.adapters.net.security import SecretSource


@dataclass(frozen=True, slots=True)
class HexkvSettings:
    """Settings of the store ``hexkv``."""

    address: str
    """``hexkv://host:port``, as ``hexkv serve`` prints it."""

    secret: Secret = NO_SECRET
    """The secret that the server requires; empty if it requires none."""

    secret_file: FilePath = ""
    """A file that holds the secret instead. Line ends at its end do not count."""

    connections: int = 4
    """The most calls under way at a time; others wait."""

    checksums: bool = False
    """Send a digest with each chunk. The engine verifies frames anyway: this locates damage."""

    tls: bool = False
    """Encrypt. The server's certificate must be good for the host in *address*."""

    tls_ca: FilePath = ""
    """A file of authorities to trust instead of the system's."""

    tls_certificate: FilePath = ""
    """A file with this client's certificate and key, for a server that requires one."""

    def __post_init__(self) -> None:
        with about("address"):
            Address.of_url(self.address, "hexkv")
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        if (self.tls_ca or self.tls_certificate) and not self.tls:
            raise SettingError("tls", "tls_ca and tls_certificate mean nothing without it")
        if self.connections < 1:
            raise SettingError("connections", "must be at least 1")


def _secret_of(settings: HexkvSettings) -> SecretSource:
    """The secret that the server requires.

    Raises:
        ConfigError: the file that has it cannot be used.
    """
    from hexkv.adapters.net.security import RotatedSecret

    if settings.secret_file:
        with about("secret_file"):
            return RotatedSecret(settings.secret_file)
    return settings.secret.reveal().encode()


def _tls_of(settings: HexkvSettings) -> SSLContext | None:
    """The TLS context of connections; None without encryption.

    Raises:
        ConfigError: a file cannot be used.
    """
    from hexkv.adapters.net.tls import Trust

    trust = Trust(settings.tls_ca, settings.tls_certificate, newest=True)
    return trust.context() if settings.tls else None


def _open_hexkv(settings: HexkvSettings, context: OpenContext) -> object:
    from hexkv.adapters.lmserver.store import HexkvStore

    return HexkvStore(
        Address.of_url(settings.address, "hexkv"),
        context.clock,
        secret=_secret_of(settings),
        checked=settings.checksums,
        connections=settings.connections,
        tls=_tls_of(settings),
    )


def _hexkv_door(settings: HexkvSettings) -> BackDoor:
    from hexkv.adapters.lmserver.back_door import HexkvDoor

    address = Address.of_url(settings.address, "hexkv")
    return HexkvDoor(address, _secret_of(settings), _tls_of(settings))


def _serve(arguments: Sequence[str]) -> int:
    from hexkv.adapters.lmserver.serve import run

    return run(arguments)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "hexkv",
            "a hexkv server",
            _open_hexkv,
            HexkvSettings,
            schemes=("hexkv",),
            back_door=_hexkv_door,
            isolate="keys",
            contract=2,
        ),
    ]


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [CommandSpec("serve", "Serve chunks to other machines' engines", _serve)]
