"""Receives many short values at once: one pass over the bytes instead of a call for each line."""

from __future__ import annotations

from hexkv.adapters.redis._wire import ErrorReply, RedisStream, garbled, length
from hexkv.ports import Deadline

_PIECE = 64 << 10
_ONE = b"$8\r\n"
_ONE_BYTES = len(_ONE) + 8 + 2
_LONGEST = 4096
"""Bytes of the longest value received this way."""


def bulks(wire: RedisStream, count: int, deadline: Deadline, *, array: bool) -> list[bytes | None]:
    """Receive *count* values, ``None`` for each absent one; in one *array*, or as single replies.

    Raises:
        ErrorReply: the server answered with an error.
        BadMessage: it does not speak RESP2, or a value is longer than 4 KiB.
    """
    if array:
        line = wire.line(deadline)
        if line.startswith(b"-"):
            raise ErrorReply(line[1:])
        if line != b"*%d" % count:
            raise garbled(line)
    found: list[bytes | None] = []
    data, at = b"", 0
    while len(found) < count:
        # Fast path: nearly all values have one holder, or none.
        if data.startswith(_ONE, at) and data.startswith(b"\r\n", at + _ONE_BYTES - 2):
            found.append(data[at + len(_ONE) : at + _ONE_BYTES - 2])
            at += _ONE_BYTES
            continue
        end = data.find(b"\r\n", at)
        if end >= 0:
            line = data[at:end]
            if line == b"$-1":
                found.append(None)
                at = end + 2
                continue
            if line.startswith(b"-"):
                raise ErrorReply(line[1:])
            if not line.startswith(b"$") or (size := length(line[1:], line)) > _LONGEST:
                raise garbled(line)
            start = end + 2
            if start + size + 2 <= len(data):
                if data[start + size : start + size + 2] != b"\r\n":
                    raise garbled(data[start + size : start + size + 2])
                found.append(data[start : start + size])
                at = start + size + 2
                continue
        elif len(data) - at > _LONGEST:
            raise garbled(data[at:])
        piece = wire.stream.take_some(_PIECE, deadline)
        if not piece:
            raise garbled(b"")
        data, at = data[at:] + piece, 0
    if at < len(data):
        wire.stream.give_back(data[at:])
    return found
