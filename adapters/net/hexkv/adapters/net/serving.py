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
from hexkv.ports import StoreError

START = 4
"""Bytes by which the wires of one port are told apart."""


class Unreadable(StoreError):
    """A value is there, and cannot be read at present."""


class Room(Protocol):
    """Memory that a value is received into."""

    @property
    def data(self) -> memoryview:
        """The value's bytes."""
        ...


class Kept(NamedTuple):
    """A value in a listing."""

    name: bytes
    size: int

    stored: float
    """Wall-clock seconds at which it was stored."""


class Values(Protocol):
    """The values of one wire, within the server's budget. Safe from any thread.

    No wire reaches the values of another, whatever its names are.
    """

    def room(self, name: bytes, size: int, seconds: float) -> AbstractContextManager[Room | None]:
        """Memory to receive a value into, while the block lasts; ``None`` if there is none.

        Args:
            name: of the value, at most 512 bytes.
            size: bytes of the value.
            seconds: to wait for memory.
        """
        ...

    def keep(self, rooms: Sequence[Room]) -> list[bool]:
        """Keep what is in *rooms*, each in place of what its name stood for, whole.

        Returns:
            True for each value that is kept. If not, its name stands for what it did before.
        """
        ...

    def lent(self, name: bytes, seconds: float) -> AbstractContextManager[memoryview | None]:
        """A value, while the block lasts; ``None`` if there is none.

        Raises:
            Unreadable: it is there, and was not read within *seconds*.
        """
        ...

    def lent_run(
        self, names: Sequence[bytes], seconds: float
    ) -> AbstractContextManager[Sequence[memoryview]]:
        """The values of the first of *names*, while the block lasts: as many as go at once.

        None where the first is not to be had; :meth:`lent` says of it what there is to say.
        """
        ...

    def contains(self, names: Sequence[bytes]) -> list[bool]:
        """True for each value that is there."""
        ...

    def delete(self, names: Sequence[bytes]) -> list[bool]:
        """Forget values. True for each that was there."""
        ...

    def list(self, after: bytes, most: int) -> list[Kept]:
        """The next *most* values behind the name *after*, in the order of their names."""
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
