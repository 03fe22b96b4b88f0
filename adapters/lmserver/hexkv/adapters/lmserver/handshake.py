"""Both ends of the handshake of a ``hexkv://`` connection: flags and limits."""

from __future__ import annotations

from typing import NamedTuple

from hexkv.adapters.lmserver.wire import CHECKED, HANDSHAKE, MAX_ENTRIES
from hexkv.adapters.net.errors import BadMessage, Refused
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.connection import Connection
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline


class Agreed(NamedTuple):
    """The result of a handshake."""

    checked: bool
    """True if a digest follows each value."""

    max_entries: int
    max_value: int


def greet(stream: Stream, secret: SecretSource, deadline: Deadline, *, checked: bool) -> Agreed:
    """The client's side.

    Raises:
        Refused: wrong version or secret, on either side.
        BadMessage: the other end is no hexkv server.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    flags = CHECKED if checked else 0
    max_entries, max_value = HANDSHAKE.greet(stream, deadline, secret, flags)
    if not 0 < max_entries <= MAX_ENTRIES:
        raise BadMessage("the server takes no entries")
    return Agreed(checked, max_entries, max_value)


def answer(connection: Connection, secret: SecretSource) -> Agreed:
    """The server's side; afterwards the client is authenticated.

    Raises:
        Refused: wrong version, secret or flags.
        BadMessage: the other end is no hexkv client.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    max_value = connection.limits.max_value
    (flags,) = HANDSHAKE.answer(connection, secret, MAX_ENTRIES, max_value)
    if flags & ~CHECKED:
        raise Refused(f"a client wants flags {flags:#x}")
    return Agreed(bool(flags & CHECKED), MAX_ENTRIES, max_value)
