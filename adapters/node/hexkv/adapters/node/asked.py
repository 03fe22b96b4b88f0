"""A request of a client, and the client's session, as verbs see them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hexkv.adapters.node.granted import Grant, Granted
from hexkv.adapters.node.wire import Head, Space, Status
from hexkv.plugins.served import ServedChunks
from hexkv.ports import Clock, Deadline


class Request(NamedTuple):
    """A request that was read."""

    head: Head
    body: bytes
    grant: Grant | None
    """What it leases, of the verbs that do."""


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
        """When the client expects the last word on a request."""
        ...
