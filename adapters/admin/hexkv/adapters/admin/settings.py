"""Settings of administration over a socket. Imported at discovery, so it stays light."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.adapters.net.address import Address
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import SettingError, about

_LONGEST = 107
"""Bytes of a path that the kernel's address of a Unix socket can hold."""


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """Settings of the administration ``socket``: where it is served, or where it is reached."""

    address: FilePath
    """An absolute path, of a Unix socket, or ``host:port``. In the path of an engine's,
    ``{rank}`` is its rank and ``{pid}`` its process."""

    mode: str = "600"
    """Of a Unix socket, octal."""

    uids: tuple[int, ...] = ()
    """Users who may connect to a Unix socket, beside root and the cache's own."""

    gids: tuple[int, ...] = ()
    """Groups whose processes may."""

    secret: Secret = NO_SECRET
    """The secret of both ends. Required if the address is ``host:port``."""

    secret_file: FilePath = ""
    """A file that holds the secret instead. Only its owner may read it."""

    tls_certificate: FilePath = ""
    """Serving: a file with certificate and key. Other machines can reach it with TLS only."""

    tls_ca: FilePath = ""
    """Connecting: a file of authorities, of which one signed the certificate there."""

    clients: int = 16
    """Connections at a time."""

    verbs: int = 4
    """Verbs that change something, at a time."""

    def __post_init__(self) -> None:
        with about("address"):
            parse_address(self.address)
        if not (self.mode.isascii() and self.mode.isdigit()) or len(self.mode) != 3:
            raise SettingError("mode", "write three octal digits, such as 660")
        with about("mode"):
            int(self.mode, 8)
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        if not (self.address.startswith("/") or self.secret or self.secret_file):
            raise SettingError("secret", "where address is host:port, give secret or secret_file")
        for name in ("clients", "verbs"):
            if not 1 <= getattr(self, name) <= 1024:
                raise SettingError(name, "must be between 1 and 1024")


def parse_address(text: str) -> Address:
    """Return the address at which administration is served.

    Raises:
        ValueError: *text* is neither an absolute path nor ``host:port``.
    """
    if text.startswith("/"):
        if len(text.encode()) > _LONGEST:
            raise ValueError(f"the path of a Unix socket has {_LONGEST} bytes at most")
        return Address(path=text)
    if "/" in text or ":" not in text:
        raise ValueError(f"{text!r} is neither an absolute path nor host:port")
    return Address.parse(text)
