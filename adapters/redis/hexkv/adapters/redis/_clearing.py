"""Clears namespaces: scans each server for chunks, because no index of them exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.redis._commands import Answers, Ask
from hexkv.adapters.redis._replies import Redirect, error_of
from hexkv.adapters.redis._server import Server
from hexkv.adapters.redis._wire import ErrorReply, RedisStream, garbled, request
from hexkv.ports import KEY_BYTES, Deadline, Failed, StoreError, StoreUnreachable

_COUNT = "1000"
"""Keys that the server examines for each answer; it serves no other client in that time."""


def clear(
    primaries: Callable[[], Sequence[Server]], prefix: bytes, start: bytes, deadline: Deadline
) -> int:
    """Delete the chunks whose keys begin with *start*, below *prefix*; return their number.

    A scan may miss a key that moves from one server of a cluster to another, so a cluster is
    scanned until nothing is left.

    Args:
        primaries: returns the servers that have keys of their own.
        prefix: of every key of the store.
        start: the beginning of the chunks' keys.
        deadline: for all of it.

    Raises:
        StoreError: some may be left.
    """
    total = 0
    try:
        while True:
            servers = primaries()
            found = moved = 0
            for server in servers:
                with server.wire(deadline) as wire:
                    gone, away = _clear_one(wire, prefix, start, deadline)
                found, moved = found + gone, moved + away
            total += found
            if not moved and (len(servers) == 1 or not found):
                return total
    except OutOfTime as error:
        raise StoreUnreachable(f"no time to delete more than {total} chunks") from error
    except ErrorReply as error:
        raise error_of(error.args[0]) from error


def _clear_one(
    wire: RedisStream, prefix: bytes, start: bytes, deadline: Deadline
) -> tuple[int, int]:
    """Return the number of chunks deleted on one server, and of those that moved to another."""
    pattern = _literally(prefix + start) + b"*"
    cursor = b"0"
    gone = moved = 0
    while True:
        wire.send([request("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT)], deadline)
        match wire.reply(deadline):
            case [bytes() as cursor, list() as names] if cursor.isdigit():
                pass
            case reply:
                raise garbled(repr(reply).encode())
        keys = [_key(name, prefix, start) for name in names]
        present = [key for key in keys if key is not None]
        answers: Answers[bool] = [None] * len(present)
        Ask(b"UNLINK", prefix, present).run(wire, range(len(present)), answers, deadline)
        for answer in answers:
            if isinstance(answer, Failed) and isinstance(answer.error, StoreError):
                raise answer.error
        gone += answers.count(True)
        moved += sum(isinstance(answer, Redirect) for answer in answers)
        if cursor == b"0":
            return gone, moved


def _key(name: object, prefix: bytes, start: bytes) -> bytes | None:
    """The key in the name of a chunk; ``None`` if the name is not of this store."""
    if not isinstance(name, bytes) or len(name) != len(prefix) + KEY_BYTES:
        return None
    return name[len(prefix) :] if name.startswith(prefix + start) else None


def _literally(name: bytes) -> bytes:
    """A pattern that matches exactly these bytes: special characters are escaped."""
    return b"".join(b"\\%c" % byte if byte in b"*?[]\\^" else b"%c" % byte for byte in name)
