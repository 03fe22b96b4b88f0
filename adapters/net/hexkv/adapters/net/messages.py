"""Messages with a head that is checked by CRC-32 together with the body.

All numbers are little-endian::

mark:4s  kind:u8  status:u8  zero:u16  entries:u32  patience:u32  length:u32  crc:u32  | body
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.server.connection import Connection
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline

_HEAD = Struct("<4sBBHIII")
_SUMMED = Struct("<4sBBHIIII")
_SUM = Struct("<I")
HEAD_BYTES = _HEAD.size + _SUM.size

BAD_REQUEST = 1
"""The status of the answer to a request that is invalid, in every protocol."""


class MessageHead(NamedTuple):
    """The start of a message."""

    kind: int
    status: int
    entries: int
    """The number of entries in the body."""

    patience: int
    """Milliseconds for which the sender waits for memory."""

    length: int
    """Bytes of the body."""

    bare: bytes
    """The bytes that the checksum covers, beside the body."""

    checksum: int


class Framing:
    """The messages of one protocol.

    Args:
        protocol: its name, for errors.
        mark: the four bytes that each begins with.
        most: bytes of a body at most.
    """

    def __init__(self, protocol: str, mark: bytes, most: int) -> None:
        self._protocol = protocol
        self._mark = mark
        self._most = most

    def message(
        self, kind: int, count: int, body: bytes, *, patience: int = 0, status: int = 0
    ) -> bytes:
        """Return a message, ready to send."""
        bare = _HEAD.pack(self._mark, kind, status, 0, count, patience, len(body))
        return bare + _SUM.pack(crc32(body, crc32(bare))) + body

    def head(self, data: bytes) -> MessageHead:
        """Return the head of a message, from its ``HEAD_BYTES`` bytes.

        Raises:
            BadMessage: this is none, or its body is over the limit.
        """
        mark, kind, status, zero, count, patience, length, checksum = _SUMMED.unpack(data)
        if mark != self._mark or zero or length > self._most:
            raise BadMessage(f"no message of the {self._protocol} protocol")
        return MessageHead(kind, status, count, patience, length, data[: _HEAD.size], checksum)

    def ask(self, stream: Stream, kind: int, count: int, body: bytes, deadline: Deadline) -> None:
        """Send a request, which may wait for memory up to *deadline*."""
        patience = min(int(deadline.remaining() * 1000), 0xFFFF_FFFF)
        stream.send([self.message(kind, count, body, patience=patience)], deadline)

    def hear(
        self, stream: Stream, kind: int, count: int | None, deadline: Deadline
    ) -> tuple[MessageHead, bytes]:
        """Receive the answer about *count* entries, if that is known: its head, and its body.

        Raises:
            BadMessage: it answers something else, or reports an invalid request.
            OutOfTime, ConnectionBroken: as everything that waits for a stream.
        """
        found = self.head(stream.take(HEAD_BYTES, deadline))
        if found.status == BAD_REQUEST:
            raise BadMessage("the other end did not understand the request")
        if found.kind != kind or count not in (None, found.entries):
            raise BadMessage("an answer to another question")
        body = stream.take(found.length, deadline)
        verify(found, body)
        return found, body

    def request(
        self, connection: Connection, ahead: int, idle: float | None = None
    ) -> tuple[MessageHead, bytes]:
        """Receive the next request, as :meth:`Connection.request` receives its head."""
        idle = connection.limits.idle if idle is None else idle
        asked = self.head(connection.request(HEAD_BYTES, idle, ahead=ahead))
        body = connection.rest(asked.length)
        verify(asked, body)
        return asked, body


def verify(found: MessageHead, body: bytes) -> None:
    """Check that *body* is the one that was sent.

    Raises:
        BadMessage: it is not.
    """
    if crc32(body, crc32(found.bare)) != found.checksum:
        raise BadMessage("a message arrived damaged")


def summed(data: bytes) -> bytes:
    """Return *data* and its CRC-32."""
    return data + _SUM.pack(crc32(data))


def check_sum(data: bytes, what: str) -> bytes:
    """Return the data that :func:`summed` was given; *what* names it in errors.

    Raises:
        BadMessage: it arrived damaged.
    """
    bare = data[: -_SUM.size]
    if _SUM.unpack_from(data, len(bare)) != (crc32(bare),):
        raise BadMessage(f"{what} arrived damaged")
    return bare
