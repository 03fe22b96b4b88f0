"""A client's requests as its server reads them, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hexkv.adapters.net.rpc.wire import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBounds:
    """The limits of one client."""

    under_way: int = 64
    """Requests that it may have under way."""

    at_a_time: int = 1 << 16
    """Requests of these that are answered at a time, each by a thread; others wait in order."""

    queued_bytes: int = 16 << 20
    """Bytes of the bodies of the requests under way."""

    largest: int = 4 << 20
    """Bytes of one body."""

    patience: float = 10.0
    """Seconds for the greeting, for the rest of a message that has begun, and for taking an answer.
    """

    idle: float | None = None
    """Seconds between two messages; ``None``: any number."""


class Request(NamedTuple):
    """A request as it was read."""

    head: Head
    body: bytes
    grant: Any = None
    """The result of :meth:`hexkv.adapters.net.rpc.session.Session.note`."""
