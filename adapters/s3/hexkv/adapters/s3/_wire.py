"""HTTP/1.1 on a connected socket, between the caller's memory and the kernel's.

A request is written with as few calls as the kernel allows; a body is received straight into
the memory that it is for, but for what comes in one piece with the headers. On plain sockets
the kernel keeps the time: one limit covers a whole body, however slowly it trickles.

RFC 9112.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from types import TracebackType
from typing import NamedTuple

from hexkv.ports import Deadline, StoreUnreachable

_AHEAD = 4 << 10
"""Bytes asked for where a line is expected: so many of a body are copied, at most."""

_LONGEST_HEAD = 32 << 10
_MOST_DIGITS = 15
_PIECE = 4 << 20
"""Bytes that are encrypted in one call, so that the deadline is looked at in between."""


class OutOfTime(Exception):
    """The deadline passed before the server had answered."""


class Head(NamedTuple):
    """The first part of a reply."""

    status: int
    headers: dict[str, str]
    """Names in small letters."""


class Wire:
    """One connection: a request, then all of its reply, then the next request."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ahead = b""
        self._left: int | None = 0
        """Bytes of the body still to come; ``None`` for as many as there are."""
        self._chunked = False
        self._lasting = True
        self._replies = 0
        self._silent = True
        sock.settimeout(None)

    @property
    def free(self) -> bool:
        """Whether another request may be sent: the reply was taken whole, and the server stays."""
        return self._left == 0 and self._lasting and not self._ahead

    @property
    def ended_early(self) -> bool:
        """Whether it has served others well, and said nothing at all to the last request."""
        return self._replies > 0 and self._silent

    @property
    def quiet(self) -> bool:
        """Whether it is open, and nothing came that nobody asked for."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def hang_up(self) -> None:
        """Wake whoever waits on it, from any thread. The socket stays for its owner to close."""
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # closed already, by either side

    def close(self) -> None:
        """Give the socket back."""
        self._sock.close()

    def send(self, head: bytes, body: memoryview, deadline: Deadline) -> None:
        """Write a request.

        Raises:
            OutOfTime: some of it may have gone.
            StoreUnreachable: the connection broke.
        """
        self._left = None
        self._silent = True
        left = [memoryview(head), body] if len(body) else [memoryview(head)]
        while left:
            with _Broken():
                sent = self._gather(left, deadline)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def head(self, deadline: Deadline, *, bodiless: bool = False) -> Head:
        """Receive the first part of the reply.

        Args:
            deadline: of the reply.
            bodiless: whether the request was one whose reply never has a body.

        Raises:
            OutOfTime: it did not come in time.
            StoreUnreachable: the connection broke, or what came is no HTTP.
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
        """Bytes of the body still to come, where the server said it."""
        return self._left

    def fill(self, into: memoryview, deadline: Deadline) -> None:
        """Receive the next so many bytes of a body whose length is known.

        Raises:
            OutOfTime: not all came in time.
            StoreUnreachable: the connection broke, or the body is shorter.
        """
        if self._left is None or self._left < len(into):
            raise StoreUnreachable("the body is shorter than what was asked for")
        self._exactly(into, deadline)
        self._left -= len(into)

    def text(self, most: int, deadline: Deadline) -> bytes:
        """Receive the rest of the body: for what is about objects, not for objects.

        Raises:
            OutOfTime, StoreUnreachable: as for :meth:`fill`; also where it has more than
                *most* bytes.
        """
        if self._left is not None:
            if self._left > most:
                raise StoreUnreachable(f"a reply of {self._left} bytes")
            body = bytearray(self._left)
            self.fill(memoryview(body), deadline)
            return bytes(body)
        body = bytearray()
        if not self._chunked:
            while piece := self._ahead or self._some(deadline):
                self._ahead = b""
                _grow(body, piece, most)
            return bytes(body)
        while size := _number(
            self._until(b"\r\n", deadline)[:-2].partition(b";")[0].decode("ascii", "replace"), 16
        ):
            if len(body) + size > most:
                raise StoreUnreachable(f"a reply of more than {most} bytes")
            line = bytearray(size + 2)
            self._exactly(memoryview(line), deadline)
            body += line[:-2]
        while self._until(b"\r\n", deadline) != b"\r\n":
            continue  # trailing headers
        self._left = 0
        return bytes(body)

    def _exactly(self, into: memoryview, deadline: Deadline) -> None:
        done = min(len(self._ahead), len(into))
        into[:done] = self._ahead[:done]
        self._ahead = self._ahead[done:]
        while done < len(into):
            with _Broken():
                got = self._receive(into[done:], deadline, whole=True)
            if not got:
                raise StoreUnreachable("the server closed the connection within a body")
            done += got

    def _until(self, end: bytes, deadline: Deadline) -> bytes:
        """Everything up to and with *end*."""
        while (place := self._ahead.find(end)) < 0:
            if len(self._ahead) > _LONGEST_HEAD:
                raise garbled(self._ahead)
            piece = self._some(deadline)
            if not piece:
                raise StoreUnreachable("the server closed the connection")
            self._ahead += piece
        place += len(end)
        found, self._ahead = self._ahead[:place], self._ahead[place:]
        return found

    def _some(self, deadline: Deadline) -> bytes:
        into = bytearray(_AHEAD)
        with _Broken():
            got = self._receive(memoryview(into), deadline, whole=False)
        self._silent = self._silent and not got
        return bytes(into[:got])

    def _gather(self, parts: list[memoryview], deadline: Deadline) -> int:
        self._limit(socket.SO_SNDTIMEO, deadline)
        return self._sock.sendmsg(parts)

    def _receive(self, into: memoryview, deadline: Deadline, *, whole: bool) -> int:
        self._limit(socket.SO_RCVTIMEO, deadline)
        return self._sock.recv_into(into, 0, socket.MSG_WAITALL if whole else 0)

    def _limit(self, option: int, deadline: Deadline) -> None:
        seconds = left_of(deadline)
        whole = int(seconds)
        # Zero would mean no limit.
        micro = max(1, int((seconds - whole) * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", whole, micro))


class TLSWire(Wire):
    """One encrypted connection, with its limits kept by Python."""

    def _gather(self, parts: list[memoryview], deadline: Deadline) -> int:
        self._sock.settimeout(left_of(deadline))
        return self._sock.send(parts[0][:_PIECE])

    def _receive(self, into: memoryview, deadline: Deadline, *, whole: bool) -> int:
        del whole
        self._sock.settimeout(left_of(deadline))
        return self._sock.recv_into(into)


def left_of(deadline: Deadline) -> float:
    """Seconds until *deadline*, more than none.

    Raises:
        OutOfTime: it has passed.
    """
    seconds = deadline.remaining()
    if seconds <= 0:
        raise OutOfTime
    return seconds


def garbled(text: bytes) -> StoreUnreachable:
    """For replies that are none: the connection must not be used again."""
    return StoreUnreachable(f"the server does not speak HTTP/1.1: {text[:40]!r}")


def _parsed(text: bytes) -> Head:
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
        # Two lengths are how one reply is made to look like two.
        if not colon or (name == "content-length" and headers.get(name, value) != value):
            raise garbled(text)
        headers[name] = value
    return Head(int(status), headers)


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


class _Broken:
    """Translates what sockets raise."""

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, BlockingIOError | TimeoutError | ssl.SSLWantReadError):
            raise OutOfTime from error
        if isinstance(error, OSError):
            raise StoreUnreachable(f"the connection broke: {error}") from error
