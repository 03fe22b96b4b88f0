"""The handshake of a ``hexkv://`` connection: version, flags, limits, and the secret of both ends.

The proofs are those of :mod:`hexkv.adapters.net.handshake`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hexkv.adapters.lmserver.wire import (
    CHALLENGE,
    CHECKED,
    HELLO,
    MAGIC,
    MAX_ENTRIES,
    VERSION,
    Welcome,
)
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.handshake import NONCE_BYTES, Refused, admit, prove
from hexkv.adapters.net.server.connection import Connection
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline

Nonce = Callable[[int], bytes]
"""Returns that many random bytes: ``secrets.token_bytes``, except in tests."""


class Agreed(NamedTuple):
    """The result of a handshake."""

    checked: bool
    """True if a digest follows each value."""

    max_entries: int
    max_value: int


def greet(
    stream: Stream, secret: bytes, deadline: Deadline, nonce: Nonce, *, checked: bool
) -> Agreed:
    """The client's side.

    Raises:
        Refused: wrong version or secret, on either side.
        BadMessage: the other end is no hexkv server.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    hello = HELLO.pack(MAGIC, VERSION, CHECKED if checked else 0, nonce(NONCE_BYTES))
    stream.send([hello], deadline)
    challenge = stream.take(CHALLENGE.size, deadline)
    magic, version, verdict, max_entries, max_value, _ = CHALLENGE.unpack(challenge)
    if magic != MAGIC:
        raise BadMessage("no hexkv server answers there")
    if version != VERSION or verdict != Welcome.WELCOME:
        raise Refused(f"the server speaks version {version} of the protocol, not {VERSION}")
    if not 0 < max_entries <= MAX_ENTRIES:
        raise BadMessage("the server takes no entries")
    prove(stream, secret, hello, challenge, deadline)
    return Agreed(checked, max_entries, max_value)


def answer(connection: Connection, secret: bytes, nonce: Nonce) -> Agreed:
    """The server's side; afterwards the client is authenticated.

    Raises:
        Refused: wrong version or secret; the refusal has been sent to the client.
        BadMessage: the other end is no hexkv client.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    stream, deadline = connection.stream, connection.opening
    max_value = connection.limits.max_value
    hello = connection.begin(HELLO.size)
    magic, version, flags, _ = HELLO.unpack(hello)
    if magic != MAGIC:
        raise BadMessage("no greeting of the hexkv protocol")
    right = version == VERSION and not flags & ~CHECKED
    verdict = Welcome.WELCOME if right else Welcome.WRONG_VERSION
    challenge = CHALLENGE.pack(MAGIC, VERSION, verdict, MAX_ENTRIES, max_value, nonce(NONCE_BYTES))
    stream.send([challenge], deadline)
    if not right:
        raise Refused(f"a client speaks version {version} with flags {flags:#x}")
    admit(stream, secret, hello, challenge, deadline)
    connection.known = True
    return Agreed(bool(flags & CHECKED), MAX_ENTRIES, max_value)
