"""RESP2 over a stream: requests from, and values into, the caller's memory.

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline

Reply = bytes | int | None | list["Reply"]

_AHEAD = 64
"""Bytes to read where a line is expected: the most bytes of a value that are copied."""

_LONGEST_LINE = 16 << 10
_MOST_ELEMENTS = 1 << 16
_DEEPEST = 4
"""The depth of nested arrays: CLUSTER SLOTS has four."""

_END = b"\r\n"
_SHOWN = 40
"""Bytes of an invalid reply that messages show."""


class ErrorReply(Exception):
    """The server answered with an error; the argument is its text."""


class RedisStream:
    """One connection. Everything raises as the stream does, and ``BadMessage``."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def reusable(self, *, well: bool) -> bool:
        """True if all replies were received: after an error some are left."""
        return well

    def send(self, parts: Sequence[bytes | memoryview], deadline: Deadline) -> None:
        """Write all of *parts*, in order."""
        self.stream.send(parts, deadline)

    def line(self, deadline: Deadline) -> bytes:
        """Receive one line, without its end."""
        line = self.stream.take_until(_END, _LONGEST_LINE, deadline, ahead=_AHEAD)
        if line is None:
            raise garbled(self.stream.take_some(_SHOWN, deadline))
        return line[:-2]

    def value(self, into: memoryview, deadline: Deadline) -> None:
        """Receive a value of known length, and the line end behind it."""
        self.stream.fill(into, deadline)
        if end := self.line(deadline):
            raise garbled(end)

    def skip(self, size: int, deadline: Deadline) -> None:
        """Receive and drop a value of known length, and the line end behind it."""
        self.stream.skip(size, deadline)
        if end := self.line(deadline):
            raise garbled(end)

    def digits(self, count: int, deadline: Deadline) -> bytes | None:
        """Receive *count* integer replies that are all 0 or 1, as a string of these digits.

        Return ``None`` if one of them is anything else; then all are still to be received.
        """
        # No reply is shorter than these, so this does not wait for bytes that never come.
        replies = self.stream.take(4 * count, deadline)
        digits = replies[1::4]
        if (
            digits.count(b"0") + digits.count(b"1") == count
            and replies[0::4] == b":" * count
            and replies[2::4] == b"\r" * count
            and replies[3::4] == b"\n" * count
        ):
            return digits
        self.stream.give_back(replies)
        return None

    def reply(self, deadline: Deadline, depth: int = 0) -> Reply:
        """Receive a reply of any kind: for the few requests that are not about chunks.

        Args:
            deadline: of all of it.
            depth: the number of arrays around it.

        Raises:
            ErrorReply: the server answered with an error.
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
        if kind == b"*" and number <= _MOST_ELEMENTS and depth < _DEEPEST:
            return [self.reply(deadline, depth + 1) for _ in range(number)]
        if kind == b":":
            return number
        raise garbled(line)


def request(*words: str | bytes) -> bytes:
    """A request of a few short words."""
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


def length(digits: bytes, line: bytes) -> int:
    """The length in *line*: unsigned, of at most ten digits.

    Raises:
        BadMessage: it is not such a number.
    """
    if not digits.isdigit() or len(digits) > 10:
        raise garbled(line)
    return int(digits)


def garbled(line: bytes) -> BadMessage:
    """The error for an invalid reply: the connection must not be used again."""
    return BadMessage(f"the server does not speak RESP2: {line[:_SHOWN]!r}")
