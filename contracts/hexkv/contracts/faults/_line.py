"""One connection through the proxy, and the network condition that applies to it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from enum import Enum
from random import Random
from struct import pack

CHUNK = 128 << 10
"""Bytes that are passed on at a time."""

_RESET = pack("ii", 1, 0)
"""``SO_LINGER`` such that closing sends a reset, as a restarted machine does."""


class Way(Enum):
    """A direction."""

    FORTH = "to the server"
    BACK = "to the client"


BOTH = frozenset(Way)


@dataclass(frozen=True, slots=True)
class Condition:
    """The present fault of the network."""

    latency: float = 0.0
    """Additional seconds of each turn of a conversation."""
    bandwidth: float = 0.0
    """Bytes per second in each direction of ``narrow``; 0 for as many as there are."""
    narrow: frozenset[Way] = BOTH
    refusing: bool = False
    cut_after: int | None = None
    """Bytes of replies after which a connection is reset."""
    stalled: frozenset[Way] = frozenset()
    lost: frozenset[Way] = frozenset()
    garbage: int = 0
    """Random bytes before the next reply on each connection."""

    def gulp(self, way: Way) -> int:
        """Bytes to pass on at a time: fewer at a low bandwidth, so that they trickle."""
        slow = self.bandwidth and way in self.narrow
        return min(CHUNK, max(1, int(self.bandwidth / 50))) if slow else CHUNK

    def delay(self, way: Way, size: int, *, turned: bool) -> float:
        """Seconds that *size* bytes take, the first of a turn or not."""
        taken = size / self.bandwidth if self.bandwidth and way in self.narrow else 0.0
        return taken + (self.latency if turned else 0.0)


CLEAR = Condition()


class ProxiedLine:
    """Two sockets, one to the client and one to the server."""

    def __init__(self, client: asyncio.StreamWriter, random: Random) -> None:
        self._ends = {Way.BACK: client}
        self._random = random
        self._last: Way | None = None
        self.passed = dict.fromkeys(Way, 0)
        """Bytes passed on each way."""
        self.holed = False
        """True if bytes were lost, which makes the rest of the stream meaningless."""
        client.transport.set_write_buffer_limits(high=CHUNK)
        self.begin_anew()

    def reaches(self, server: asyncio.StreamWriter) -> None:
        """Set *server* as the other end, once it is connected."""
        self._ends[Way.FORTH] = server
        server.transport.set_write_buffer_limits(high=CHUNK)

    def begin_anew(self) -> None:
        """Reset the counters, after the network condition has changed."""
        self._replied = 0
        self._spoilt = False

    def turns(self, way: Way) -> bool:
        """Return True if data going *way* now changes the direction of the conversation."""
        turned = self._last is not way
        self._last = way
        return turned

    async def deliver(self, way: Way, data: bytes, condition: Condition) -> None:
        """Pass *data* on, as far as *condition* lets it through.

        Raises:
            OSError: the connection broke, or has reached its ``cut_after`` limit.
        """
        if way in condition.lost:
            self.holed = True
            return
        end = self._ends[way]
        if way is Way.BACK:
            if condition.garbage and not self._spoilt:
                self._spoilt = True
                end.write(self._random.randbytes(condition.garbage))
            if condition.cut_after is not None:
                data = data[: max(0, condition.cut_after - self._replied)]
            self._replied += len(data)
        self.passed[way] += len(data)  # before the write: received bytes are already counted
        end.write(data)
        await end.drain()
        if condition.cut_after is not None and self._replied >= condition.cut_after:
            raise ConnectionResetError("this was far enough")

    def end(self, way: Way) -> None:
        """Pass on the end of the stream in direction *way*."""
        end = self._ends[way]
        if end.can_write_eof() and not end.is_closing():
            end.write_eof()

    def reset(self) -> None:
        """Reset both directions, and drop the bytes under way."""
        for end in self._ends.values():
            sock = end.get_extra_info("socket")
            if not end.is_closing() and sock is not None and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()
