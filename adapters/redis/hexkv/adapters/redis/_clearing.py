"""Clearing: chunks are found by scanning each server, as nobody else knows what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.redis._commands import Answers, Ask
from hexkv.adapters.redis._replies import Redirect, error_of
from hexkv.adapters.redis._server import Server
from hexkv.adapters.redis._wire import ErrorReply, Wire, garbled, request
from hexkv.ports import KEY_BYTES, Deadline, Failed, StoreError, StoreUnreachable

_COUNT = "1000"
"""Keys that the server looks at before it answers: it serves nobody else meanwhile."""


def clear(
    primaries: Callable[[], Sequence[Server]], prefix: bytes, start: bytes, deadline: Deadline
) -> int:
    """Delete the chunks of which the keys begin with *start*, below *prefix*. How many went.

    A key that moves from one server of a cluster to another may be passed by, so there they are
    scanned until there is nothing left.

    Args:
        primaries: names the servers that have keys of their own.
        prefix: of every key of the store.
        start: how the chunks' keys begin.
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


def _clear_one(wire: Wire, prefix: bytes, start: bytes, deadline: Deadline) -> tuple[int, int]:
    """How many chunks of one server went, and how many are on another by now."""
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
        mine = [key for key in keys if key is not None]
        answers: Answers[bool] = [None] * len(mine)
        Ask(b"UNLINK", prefix, mine).run(wire, range(len(mine)), answers, deadline)
        for answer in answers:
            if isinstance(answer, Failed) and isinstance(answer.error, StoreError):
                raise answer.error
        gone += answers.count(True)
        moved += sum(isinstance(answer, Redirect) for answer in answers)
        if cursor == b"0":
            return gone, moved


def _key(name: object, prefix: bytes, start: bytes) -> bytes | None:
    """The key in the name of a chunk; ``None`` for what is none of ours."""
    if not isinstance(name, bytes) or len(name) != len(prefix) + KEY_BYTES:
        return None
    return name[len(prefix) :] if name.startswith(prefix + start) else None


def _literally(name: bytes) -> bytes:
    """A pattern for exactly these bytes, of which some are special in patterns."""
    return b"".join(b"\\%c" % byte if byte in b"*?[]\\^" else b"%c" % byte for byte in name)
