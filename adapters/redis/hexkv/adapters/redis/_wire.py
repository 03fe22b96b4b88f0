"""RESP2 on a connected socket, between the caller's memory and the kernel's.

Requests are written with one gathering call; values are received straight into the memory
that they are for. The kernel keeps the time: one limit covers a whole value, however
slowly it trickles, so a call ends with its deadline without a poll between two pieces.

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Sequence
from types import TracebackType

from hexkv.ports import Deadline, StoreUnreachable

Reply = bytes | int | None | list["Reply"]

_AHEAD = 64
"""Bytes asked for where a line is expected: so many of a value are copied, at most."""

_LONGEST_LINE = 16 << 10
_SKIP = 64 << 10
_MOST_ELEMENTS = 1 << 16


class OutOfTime(Exception):
    """The deadline passed before the server had answered."""


class ErrorReply(Exception):
    """The server answered with an error; the argument is its text."""


class Wire:
    """One connection's socket, blocking, with its limits kept by the kernel."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ahead = b""
        sock.settimeout(None)

    @property
    def quiet(self) -> bool:
        """Whether it is open, and nothing came that nobody asked for."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not self._ahead and not poll.poll(0)

    def hang_up(self) -> None:
        """Wake whoever waits on it, from any thread. The socket stays for its owner to close."""
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # closed already, by either side

    def send(self, parts: Sequence[bytes | memoryview], deadline: Deadline) -> None:
        """Write all of *parts*, in order.

        Raises:
            OutOfTime: some of it may have gone.
            StoreUnreachable: the connection broke.
        """
        left = [memoryview(part) for part in parts]
        while left:
            with _Broken():
                sent = self._gather(left, deadline)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def fill(self, into: memoryview, deadline: Deadline) -> None:
        """Receive exactly as many bytes as *into* has.

        Raises:
            OutOfTime: not all came in time.
            StoreUnreachable: the connection broke.
        """
        done = min(len(self._ahead), len(into))
        into[:done] = self._ahead[:done]
        self._ahead = self._ahead[done:]
        while done < len(into):
            with _Broken():
                got = self._receive(into[done:], deadline, whole=True)
            if not got:
                raise StoreUnreachable("the server closed the connection")
            done += got

    def line(self, deadline: Deadline) -> bytes:
        """Receive one line, without its end.

        Raises:
            OutOfTime: it did not come in time.
            StoreUnreachable: the connection broke, or no such line is in the protocol.
        """
        while (end := self._ahead.find(b"\r\n")) < 0:
            if len(self._ahead) > _LONGEST_LINE:
                raise garbled(self._ahead)
            into = bytearray(_AHEAD)
            with _Broken():
                got = self._receive(memoryview(into), deadline, whole=False)
            if not got:
                raise StoreUnreachable("the server closed the connection")
            self._ahead += into[:got]
        line, self._ahead = self._ahead[:end], self._ahead[end + 2 :]
        return line

    def value(self, into: memoryview, deadline: Deadline) -> None:
        """Receive a value, once its length is known, and what ends it."""
        self.fill(into, deadline)
        if end := self.line(deadline):
            raise garbled(end)

    def skip(self, size: int, deadline: Deadline) -> None:
        """Receive a value that nobody wants, likewise."""
        bin_ = memoryview(bytearray(min(size, _SKIP)))
        while size > 0:
            part = bin_[:size]
            self.fill(part, deadline)
            size -= len(part)
        if end := self.line(deadline):
            raise garbled(end)

    def digits(self, count: int, deadline: Deadline) -> bytes | None:
        """Receive *count* replies that are all ``0`` or ``1``, as these characters.

        ``None`` if one of them is something else; then all are still to be received.
        """
        # No reply is shorter than one of these, so this does not wait for more than there is.
        replies = bytearray(4 * count)
        self.fill(memoryview(replies), deadline)
        digits = bytes(replies[1::4])
        if (
            digits.count(b"0") + digits.count(b"1") == count
            and replies[0::4] == b":" * count
            and replies[2::4] == b"\r" * count
            and replies[3::4] == b"\n" * count
        ):
            return digits
        self._ahead = bytes(replies) + self._ahead
        return None

    def reply(self, deadline: Deadline) -> Reply:
        """Receive a reply of any kind: for the few questions that are not about chunks.

        Raises:
            ErrorReply: the server answered with an error.
            OutOfTime, StoreUnreachable: as for :meth:`line`.
        """
        line = self.line(deadline)
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise ErrorReply(rest)
        if rest == b"-1" and kind in (b"$", b"*"):
            return None
        number = length(rest, line)
        if kind == b"$" and number <= _LONGEST_LINE:
            value = bytearray(number)
            self.value(memoryview(value), deadline)
            return bytes(value)
        if kind == b"*" and number <= _MOST_ELEMENTS:
            return [self.reply(deadline) for _ in range(number)]
        if kind == b":":
            return number
        raise garbled(line)

    def _gather(self, parts: Sequence[memoryview], deadline: Deadline) -> int:
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
    """One connection's encrypted socket, with its limits kept by Python."""

    def _gather(self, parts: Sequence[memoryview], deadline: Deadline) -> int:
        self._sock.settimeout(left_of(deadline))
        return self._sock.send(parts[0])

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


def length(digits: bytes, line: bytes) -> int:
    """The number in *line*, which has no sign and no more digits than a length takes."""
    if not digits.isdigit() or len(digits) > 10:
        raise garbled(line)
    return int(digits)


def garbled(line: bytes) -> StoreUnreachable:
    """For replies that are none: the connection must not be used again."""
    return StoreUnreachable(f"the server does not speak RESP2: {line[:40]!r}")


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
