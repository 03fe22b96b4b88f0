"""What a server of values and the wires that it speaks ask of each other.

``hexkv serve`` speaks a wire of its own. Others come from plugins, as adapters of the kind
``wire``: what their ``open`` builds is a :class:`Wire`. So a wire knows no server, and the
server no wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from hexkv.adapters.net.connection import Connection

START = 4
"""Bytes by which the wires of one port are told apart."""

DIGEST = 32
"""Bytes of what a value is kept under."""


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

    def list(self, after: bytes, most: int) -> list[Kept]:
        """The next *most* values behind the digest *after*, in the order of their digests."""
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

    def session(self, connection: Connection, values: Values) -> Session:
        """Answer one connection. Nothing has been checked about the client but its start.

        The start comes again with the first request.
        """
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
