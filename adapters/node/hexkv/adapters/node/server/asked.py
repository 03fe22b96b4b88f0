"""A client's request, and its session, as verbs see them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hexkv.adapters.node.server.granted import Grant, Granted
from hexkv.adapters.node.wire import Head, Space, Status
from hexkv.plugins.composition.served import ServedChunks
from hexkv.ports import Clock, Deadline


class Request(NamedTuple):
    """A request as it was read."""

    head: Head
    body: bytes
    grant: Grant | None
    """Its leases, for verbs that lease."""


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
