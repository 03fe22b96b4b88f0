"""What a server of values and the wires that it speaks ask of each other.

``hexkv serve`` speaks a wire of its own. Others come from plugins, as adapters of the kind
``wire``: what their ``open`` builds is a :class:`Wire`. So a wire knows no server, and the
server no wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hexkv.adapters.net.stream import Stream
from hexkv.ports import Clock, Deadline

START = 4
"""Bytes by which the wires of one port are told apart."""

DIGEST = 32
"""Bytes of what a value is kept under."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may take."""

    max_value: int
    """Bytes of a value, and of all values that a connection is sending at a time."""

    patience: float = 10.0
    """Seconds for the rest of a message that has begun, and for a handshake."""

    rate: float = 8e6
    """Bytes per second that a value moves at least, after the patience."""

    idle: float = 600.0
    """Seconds between two requests."""

    wait: float = 5.0
    """Seconds that a request waits for memory at most."""

    def transfer(self, clock: Clock, size: int) -> Deadline:
        """When *size* bytes must have gone over the connection."""
        return Deadline.after(clock, self.patience + size / self.rate)


class Room(Protocol):
    """Memory that a value is received into, or lies in while it is sent."""

    @property
    def views(self) -> Sequence[memoryview]:
        """The value's bytes, in order."""
        ...

    @property
    def size(self) -> int:
        """How many these are."""
        ...


class Kept(NamedTuple):
    """A value in a listing."""

    digest: bytes
    size: int


class Values(Protocol):
    """The values of one wire, within the server's budget. Safe from any thread.

    Each is kept under a digest of ``DIGEST`` bytes, which the wire makes of its own names. The
    wires of all plugins share these digests: a hash that begins with the wire's name keeps them
    apart. Chunks of the server's own wire are never among them.
    """

    def room(self, size: int) -> AbstractContextManager[Room | None]:
        """Memory to receive a value into, while the block lasts; ``None`` if there is none."""
        ...

    def put(self, digest: bytes, room: Room) -> bool:
        """Keep what is in *room*, which :meth:`room` gave, in place of what was there, whole.

        Returns:
            True if it is kept. If not, what was there may be, or not.
        """
        ...

    def lent(
        self, digest: bytes, start: int = 0, size: int | None = None
    ) -> AbstractContextManager[Room | None]:
        """A value or a range of it, while the block lasts; ``None`` if it cannot be read."""
        ...

    def contains(self, digest: bytes) -> bool:
        """True if the value is there."""
        ...

    def delete(self, digest: bytes) -> None:
        """Forget the value."""
        ...

    def touch(self, digest: bytes) -> None:
        """Note for the policy that the value was asked for."""
        ...

    def list(self, most: int) -> list[Kept]:
        """The first *most* values, in the order of their digests."""
        ...


class Session(Protocol):
    """One connection, as its thread sees it."""

    def run(self) -> None:
        """Answer until the connection ends.

        Raises:
            OutOfTime, ConnectionBroken: the connection is over, as every one is at last.
            BadMessage: the client does not speak the protocol.
        """
        ...


@dataclass(frozen=True, slots=True)
class Incoming:
    """A connection that begins: what a session is made of."""

    stream: Stream
    start: bytes
    """Its first bytes, which are taken from the stream."""

    limits: Limits
    clock: Clock

    idle: Callable[[bool], None]
    """To be called with ``True`` before each wait for a request, with ``False`` after it."""


class Wire(Protocol):
    """A wire that a server speaks beside its own, over the same port."""

    @property
    def scheme(self) -> str:
        """What addresses of the wire begin with, without ``://``."""
        ...

    @property
    def starts(self) -> Sequence[bytes]:
        """How connections of the wire begin: the first ``START`` bytes, each."""
        ...

    def session(self, incoming: Incoming, values: Values) -> Session:
        """Answer one connection. Nothing has been checked about the client but its start."""
        ...


def part(room: Room, start: int, size: int) -> list[memoryview]:
    """Views of a range of a value, which must lie within it."""
    found = []
    for view in room.views:
        length = len(view)
        if start < length and size:
            piece = view[start : start + size]
            found.append(piece)
            size -= len(piece)
        start = max(0, start - length)
    return found
