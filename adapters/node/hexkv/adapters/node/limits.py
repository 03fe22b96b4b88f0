"""What one client of a node may take, and how long."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from struct import pack


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take."""

    leased_bytes: int
    """Bytes of the pool that it may have leased at a time."""

    under_way: int = 64
    """Requests that it may have under way, each with a thread."""

    queued_bytes: int = 16 << 20
    """Bytes of the bodies of these requests."""

    patience: float = 10.0
    """Seconds for the greeting, for the rest of a message that has begun, and for an answer that
    it does not take."""


def take_no_longer(sock: socket.socket, seconds: float) -> None:
    """Have every send end after *seconds*; receiving waits for ever."""
    whole = int(seconds)
    micros = int((seconds - whole) * 1e6)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("@ll", whole, micros))
