"""The limits of one client of a node, in size and in time."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from struct import pack


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one client."""

    leased_bytes: int
    """Bytes of the pool that it may lease at a time."""

    under_way: int = 64
    """Requests that it may have under way, each with a thread."""

    queued_bytes: int = 16 << 20
    """Bytes of the bodies of these requests."""

    patience: float = 10.0
    """Seconds for the greeting, for the rest of a message that has begun, and for taking an answer.
    """


def take_no_longer(sock: socket.socket, seconds: float) -> None:
    """Limit every send to *seconds*; receiving has no limit."""
    whole = int(seconds)
    micros = int((seconds - whole) * 1e6)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("@ll", whole, micros))
