"""Settings of the memory and of the client."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import SettingError


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Settings of the memory provider ``shared``."""

    huge_pages: bool = False
    """Take the pool from the huge pages of 2 MiB that the operator reserved."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of the node ``unix``, which ``node`` in a configuration stands for."""

    socket: FilePath
    """The path at which the node listens."""

    def __post_init__(self) -> None:
        if not self.socket.startswith("/"):
            raise SettingError("socket", "must be an absolute path")
