"""The protocols between a server of values and the wires that it speaks.

``hexkv serve`` speaks a wire of its own. Others come from plugins, as adapters of the kind
``wire``: their ``open`` returns a :class:`Wire`. So a wire knows no server, and the server no wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from hexkv.adapters.net.server.connection import Connection
from hexkv.ports import StoreError

START = 4
"""Bytes that distinguish the wires of one port."""


class Unreadable(StoreError):
    """A value exists, and cannot be read at present."""


class Room(Protocol):
    """Memory that a value is received into."""

    @property
    def data(self) -> memoryview:
        """The value's bytes."""
        ...


class ListedValue(NamedTuple):
    """A value in a listing."""

    name: bytes
    size: int

    stored: float
    """Wall-clock seconds at which it was stored."""


class Values(Protocol):
    """The values of one wire, within the server's budget. Safe from any thread.

    A wire never reaches the values of another, also with equal names.
    """

    def room(self, name: bytes, size: int, seconds: float) -> AbstractContextManager[Room | None]:
        """Yield memory to receive a value into, during the block; ``None`` if there is none.

        Args:
            name: of the value, at most 512 bytes.
            size: bytes of the value.
            seconds: to wait for memory.
        """
        ...

    def keep(self, rooms: Sequence[Room]) -> list[bool]:
        """Keep the values in *rooms*, each replacing the value of its name as a whole.

        Returns:
            True for each value that is kept. If not, its name keeps its former value.
        """
        ...

    def lent(self, name: bytes, seconds: float) -> AbstractContextManager[memoryview | None]:
        """Yield a value, during the block; ``None`` if there is none.

        Raises:
            Unreadable: it exists, and was not read within *seconds*.
        """
        ...

    def lent_run(
        self, names: Sequence[bytes], seconds: float
    ) -> AbstractContextManager[Sequence[memoryview]]:
        """Yield the values of the first of *names*, during the block: as many as fit at once.

        Empty if the first is not available; then :meth:`lent` gives the reason.
        """
        ...

    def contains(self, names: Sequence[bytes]) -> list[bool]:
        """Return True for each value that exists."""
        ...

    def delete(self, names: Sequence[bytes]) -> list[bool]:
        """Forget values. Return True for each that existed."""
        ...

    def list(self, after: bytes, most: int) -> list[ListedValue]:
        """Return the next *most* values after the name *after*, in the order of their names."""
        ...


class Session(Protocol):
    """One connection, as its thread sees it."""

    def run(self) -> None:
        """Answer until the connection ends.

        Raises:
            OutOfTime, ConnectionBroken: the connection is over; every session ends by an error.
            BadMessage: the client does not speak the protocol.
        """
        ...


class Wire(Protocol):
    """A wire that a server speaks beside its own, over the same port."""

    @property
    def scheme(self) -> str:
        """The scheme of the wire's addresses, without ``://``."""
        ...

    @property
    def starts(self) -> Sequence[bytes]:
        """The first ``START`` bytes of the wire's connections, each."""
        ...

    def session(self, connection: Connection, values: Values) -> Session:
        """Answer one connection. Only the start of the client has been checked.

        The first request includes the start again.
        """
        ...
