"""The session of a client, as verbs see it."""

from __future__ import annotations

from typing import Protocol

from hexkv.adapters.net.rpc.wire import Head, Status
from hexkv.adapters.node.server.granted import Granted
from hexkv.adapters.node.wire import Space
from hexkv.peers.serving.served import ServedChunks
from hexkv.ports import Clock, Deadline


class Client(Protocol):
    """The session of a client, as verbs see it."""

    name: str
    served: ServedChunks
    clock: Clock
    granted: Granted
    spaces: dict[int, Space]
    met: set[tuple[int, bytes]]
    pinned: set[str]
    trusted: bool

    def send(self, asked: Head, status: Status, body: bytes = b"") -> None:
        """Answer a request."""
        ...

    def until(self, asked: Head) -> Deadline:
        """Return the time until which the client waits for the last answer to a request."""
        ...
