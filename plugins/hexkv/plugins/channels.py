"""The settings of every channel, under the same names and with the same defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import OpenContext, SettingError, about

T = TypeVar("T")

_NAME_BYTES = 64


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Settings that all channels have. A channel's own class adds its address, and more."""

    name: str = ""
    """Of this peer, for the others. At most 64 bytes. Empty: the end of the process's name in the
    directory."""

    secret: Secret = NO_SECRET
    """The secret that all peers share."""

    secret_file: FilePath = ""
    """A file that holds the secret instead, mode 0600."""

    connections: int = 4
    """Calls under way to a peer at a time; others wait."""

    clients: int = 64
    """Connections of peers that are served at a time."""

    max_frame: int = 256 << 20
    """Bytes of a frame, and of all frames that a connection receives, or has leased, at a time."""

    patience: float = 10.0
    """Seconds to wait for a peer, or for which it may lease frames, beside 1 s for each 8 MB."""

    def __post_init__(self) -> None:
        if len(self.name.encode()) > _NAME_BYTES:
            raise SettingError("name", f"must have at most {_NAME_BYTES} bytes")
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        for name in ("connections", "clients", "max_frame"):
            if getattr(self, name) < 1:
                raise SettingError(name, "must be at least 1")
        if not self.patience > 0:
            raise SettingError("patience", "must be more than 0")

    @property
    def knows_peers(self) -> bool:
        """True if a peer needs more than a process of the same user to offer chunks."""
        return bool(self.secret or self.secret_file)

    def own_name(self, context: OpenContext) -> str:
        """Return the name of this peer: without one it counts as another peer each time."""
        # The end has the number of the process.
        return self.name or context.name.encode()[-_NAME_BYTES:].decode(errors="ignore")

    def shared_secret(self, read: Callable[[str], T]) -> bytes | T:
        """Return the secret, and read it with *read* if it is in a file.

        Raises:
            ConfigError: the file cannot be read.
        """
        if not self.secret_file:
            return self.secret.reveal().encode()
        with about("secret_file"):
            return read(self.secret_file)
