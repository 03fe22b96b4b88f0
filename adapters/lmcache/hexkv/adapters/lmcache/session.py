"""A server's side of one ``lm://`` connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from struct import Struct

from hexkv.adapters.lmcache.wire import (
    KEY_LENGTH,
    NOTHING,
    REQUEST,
    STARTS,
    TOMBSTONE,
    Answer,
    Command,
    Request,
    Tensor,
    parse_request,
)
from hexkv.adapters.net.connection import Connection
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.serving import DIGEST, Kept, Room, Values, Wire, part

_TAIL = Struct(f"<7i{KEY_LENGTH}s")
"""Kept behind each value: what its tensor was, and its name."""

_MOST_NAMES = 100_000
"""That LIST gives."""

_PAGE = 1000
"""Values that are asked for at a time, so that other clients get their turn."""


class LMWire:
    """The wire, for a server that speaks several over one port."""

    scheme = "lm"
    starts: Sequence[bytes] = STARTS

    def session(self, connection: Connection, values: Values) -> LMSession:
        """Answer one connection."""
        return LMSession(connection, values)


class LMSession:
    """Answers the requests of one connection until it ends.

    A client of this wire opens one connection and never another, so there is no limit to how
    long it may be idle.

    Args:
        connection: with the client.
        values: what the server holds of this wire.
    """

    def __init__(self, connection: Connection, values: Values) -> None:
        self._connection = connection
        self._stream = connection.stream
        self._values = values

    def run(self) -> None:
        """Answer until the connection breaks, which is how it ends.

        Raises:
            BadMessage: the client does not speak the protocol.
            OutOfTime, ConnectionBroken: the connection is over.
        """
        while True:
            self._answer(parse_request(self._connection.request(REQUEST.size)))

    def _answer(self, asked: Request) -> None:
        match asked.command:
            case Command.PUT:
                self._put(asked)
            case Command.GET:
                self._get(_digest(asked.key))
            case Command.EXIST:
                self._tell(Answer(self._values.contains(_digest(asked.key)), 0, NOTHING))
            case Command.LIST:
                names = b"\n".join(self._names())
                self._tell(Answer(True, len(names), NOTHING), names)
            case Command.HEALTH:
                self._tell(Answer(True, 0, NOTHING))

    def _put(self, asked: Request) -> None:
        """Keep what follows. Nobody waits for an answer, so failing is leaving nothing."""
        if asked.length > self._connection.limits.max_value:
            raise BadMessage(f"a value of {asked.length} bytes is announced")
        digest, tensor = _digest(asked.key), asked.tensor
        if not asked.length and tensor == TOMBSTONE:
            self._values.delete(digest)
            return
        tail = _TAIL.pack(
            tensor.format, tensor.dtype, *tensor.shape, tensor.location, asked.key.ljust(KEY_LENGTH)
        )
        with self._values.room(asked.length + len(tail)) as room:
            with self._connection.transfer(asked.length) as deadline:
                if room is None:
                    self._stream.skip(asked.length, deadline)
                else:
                    self._stream.fill_all(part(room, 0, asked.length), deadline)
            if room is not None:
                for view in part(room, asked.length, len(tail)):
                    view[:] = tail[: len(view)]
                    tail = tail[len(view) :]
            kept = room is not None and self._values.put(digest, room)
        if not kept:
            self._values.delete(digest)

    def _get(self, digest: bytes) -> None:
        with self._values.lent(digest) as lent:
            if lent is None or lent.size < _TAIL.size:
                self._tell(Answer(False, 0, NOTHING))
                return
            tensor, _ = _tail(lent)
            size = lent.size - _TAIL.size
            answer = Answer(True, size, tensor).pack()
            with self._connection.transfer(size) as deadline:
                self._stream.send([answer, *part(lent, 0, size)], deadline)
        self._values.touch(digest)

    def _names(self) -> list[bytes]:
        names: list[bytes] = []
        for digest, size in self._kept():
            if size < _TAIL.size:
                continue  # of another wire
            with self._values.lent(digest, size - _TAIL.size, _TAIL.size) as lent:
                if lent is None:
                    continue
                name = _tail(lent)[1]
            if _digest(name) == digest:  # or it was just replaced, and is no tail
                names.append(name)
        return names

    def _kept(self) -> Iterator[Kept]:
        after = bytes(DIGEST)
        for _ in range(_MOST_NAMES // _PAGE):
            page = self._values.list(after, _PAGE)
            if not page:
                return
            yield from page
            after = page[-1].digest

    def _tell(self, answer: Answer, data: bytes = b"") -> None:
        with self._connection.transfer(len(data)) as deadline:
            self._stream.send([answer.pack(), data], deadline)


def _digest(name: bytes) -> bytes:
    return sha256(name).digest()


def _tail(room: Room) -> tuple[Tensor, bytes]:
    """What is kept behind a value: its tensor and its name."""
    data = b"".join(part(room, room.size - _TAIL.size, _TAIL.size))
    form, dtype, a, b, c, d, location, name = _TAIL.unpack(data)
    return Tensor(form, dtype, (a, b, c, d), location), name.rstrip(b" ")


def _is_a_wire(wire: LMWire) -> Wire:
    return wire  # mypy checks here that it keeps the protocol's promises
