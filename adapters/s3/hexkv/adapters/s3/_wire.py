"""HTTP/1.1 over a stream: bodies from, and into, the caller's memory.

A body is received directly into its memory, except bytes that arrive together with the headers.

RFC 9112.
"""

from __future__ import annotations

from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline, StoreUnreachable

_AHEAD = 4 << 10
"""Bytes to read where a line is expected: the most bytes of a body that are copied."""

_LONGEST_HEAD = 32 << 10
_MOST_DIGITS = 15
_SHOWN = 40
"""Bytes of an invalid reply that messages show."""


class ReplyHead(NamedTuple):
    """The first part of a reply."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""


class HttpStream:
    """One connection: a request, then all of its reply, then the next request.

    Everything raises as the stream does, and ``BadMessage``.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._left: int | None = 0
        """Bytes of the body still to come; ``None`` if unknown."""
        self._chunked = False
        self._lasting = True
        self._replies = 0
        self._before = 0
        """Bytes received before the last request."""

    @property
    def free(self) -> bool:
        """True if the reply was received completely and the server keeps the connection open."""
        return self._left == 0 and self._lasting and self.stream.drained

    def reusable(self, *, well: bool) -> bool:
        """As :attr:`free`: a refusal raises, but does no harm if it was received completely."""
        del well
        return self.free

    @property
    def ended_early(self) -> bool:
        """True if it has answered earlier requests, and nothing at all came for the last one."""
        return self._replies > 0 and self.stream.received == self._before

    def send(self, head: bytes, body: memoryview, deadline: Deadline) -> None:
        """Write a request."""
        self._left = None
        self._before = self.stream.received
        self.stream.send([head, body], deadline)

    def head(self, deadline: Deadline, *, bodiless: bool = False) -> ReplyHead:
        """Receive the first part of the reply.

        Args:
            deadline: of the reply.
            bodiless: True if the reply to the request never has a body.
        """
        self._left = None  # until it is known
        while True:
            text = self._until(b"\r\n\r\n", deadline)
            reply = _parsed(text)
            if reply.status >= 200:
                break
        self._replies += 1
        version = text[:8]
        asks = reply.headers.get("connection", "").lower()
        self._lasting = version == b"HTTP/1.1" and "close" not in asks
        self._chunked = False
        if bodiless or reply.status in (204, 304):
            self._left = 0
        elif "transfer-encoding" in reply.headers:
            if reply.headers["transfer-encoding"].lower() != "chunked":
                raise garbled(text)
            self._chunked, self._left = True, None
        elif "content-length" in reply.headers:
            self._left = _number(reply.headers["content-length"], 10)
        else:
            self._left, self._lasting = None, False
        return reply

    @property
    def size(self) -> int | None:
        """Bytes of the body still to come; ``None`` if unknown."""
        return self._left

    def fill(self, into: memoryview, deadline: Deadline) -> None:
        """Fill *into* with the next bytes of a body of known length.

        Raises:
            StoreUnreachable: the body is shorter.
        """
        if self._left is None or self._left < len(into):
            raise StoreUnreachable("the body is shorter than the range asked for")
        self.stream.fill(into, deadline)
        self._left -= len(into)

    def text(self, most: int, deadline: Deadline) -> bytes:
        """Receive the rest of the body: for replies other than objects.

        Raises:
            StoreUnreachable: it has more than *most* bytes.
        """
        if self._left is not None:
            if self._left > most:
                raise StoreUnreachable(f"a reply of {self._left} bytes")
            body = bytearray(self._left)
            self.fill(memoryview(body), deadline)
            return bytes(body)
        body = bytearray()
        if not self._chunked:
            while piece := self.stream.take_some(_AHEAD, deadline):
                _grow(body, piece, most)
            return bytes(body)
        while size := _number(
            self._until(b"\r\n", deadline)[:-2].partition(b";")[0].decode("ascii", "replace"), 16
        ):
            if len(body) + size > most:
                raise StoreUnreachable(f"a reply of more than {most} bytes")
            body += self.stream.take(size + 2, deadline)[:-2]
        while self._until(b"\r\n", deadline) != b"\r\n":
            continue  # trailing headers
        self._left = 0
        return bytes(body)

    def _until(self, end: bytes, deadline: Deadline) -> bytes:
        """Receive everything up to and including *end*."""
        found = self.stream.take_until(end, _LONGEST_HEAD, deadline, ahead=_AHEAD)
        if found is None:
            raise garbled(self.stream.take_some(_SHOWN, deadline))
        return found


def garbled(text: bytes) -> BadMessage:
    """The error for an invalid reply: the connection must not be used again."""
    return BadMessage(f"the server does not speak HTTP/1.1: {text[:_SHOWN]!r}")


def _parsed(text: bytes) -> ReplyHead:
    first, *lines = text[:-4].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    known = version in ("HTTP/1.1", "HTTP/1.0")
    if not (known and len(status) == 3 and status.isascii() and status.isdigit()):
        raise garbled(text)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip()
        # Two different lengths could make one reply look like two (response splitting).
        if not colon or (name == "content-length" and headers.get(name, value) != value):
            raise garbled(text)
        headers[name] = value
    return ReplyHead(int(status), headers)


def _number(digits: str, base: int) -> int:
    if not 0 < len(digits) <= _MOST_DIGITS or not (digits.isascii() and digits.isalnum()):
        raise garbled(digits.encode("utf-8", "replace"))
    try:
        return int(digits, base)
    except ValueError as error:
        raise garbled(digits.encode()) from error


def _grow(body: bytearray, piece: bytes, most: int) -> None:
    if len(body) + len(piece) > most:
        raise StoreUnreachable(f"a reply of more than {most} bytes")
    body += piece
