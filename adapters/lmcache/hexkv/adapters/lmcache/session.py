"""A server's side of one ``lm://`` connection."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct

from hexkv.adapters.lmcache.wire import (
    NOTHING,
    REQUEST,
    STARTS,
    TOMBSTONE,
    AnswerHead,
    Command,
    RequestHead,
    Tensor,
    parse_request,
)
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.server.connection import Connection
from hexkv.adapters.net.server.serving import Unreadable, Values, Wire

log = logging.getLogger(__name__)

_TAIL = Struct("<7i")
"""The description of the tensor, stored behind each value."""

_MOST_NAMES = 100_000
"""The most names that LIST returns."""

_PAGE = 1000
"""Values that are listed at a time, so that other clients get their turn."""


class LMWire:
    """The wire, for a server that speaks several over one port."""

    scheme = "lm"
    starts: Sequence[bytes] = STARTS

    def session(self, connection: Connection, values: Values) -> LMSession:
        """Return the session of one connection."""
        return LMSession(connection, values)


class LMSession:
    """Answers the requests of one connection until it ends.

    A client of this wire opens one connection and never another, so its idle time has no limit.

    Args:
        connection: with the client.
        values: the values of this wire.
    """

    def __init__(self, connection: Connection, values: Values) -> None:
        self._connection = connection
        self._stream = connection.stream
        self._values = values

    def run(self) -> None:
        """Answer requests until the connection breaks, as every session ends.

        Raises:
            BadMessage: the client does not speak the protocol.
            OutOfTime, ConnectionBroken: the connection is over.
        """
        while True:
            self._answer(parse_request(self._connection.request(REQUEST.size)))

    def _answer(self, asked: RequestHead) -> None:
        match asked.command:
            case Command.PUT:
                self._put(asked)
            case Command.GET:
                self._get(asked.key)
            case Command.EXIST:
                self._send(AnswerHead(self._values.contains([asked.key])[0], 0, NOTHING))
            case Command.LIST:
                names = b"\n".join(self._names())
                self._send(AnswerHead(True, len(names), NOTHING), names)
            case Command.HEALTH:
                self._send(AnswerHead(True, 0, NOTHING))

    def _put(self, asked: RequestHead) -> None:
        """Keep the value that follows. PUT has no answer, so a failure deletes the value."""
        size, tensor, limits = asked.length, asked.tensor, self._connection.limits
        if size > limits.max_value:
            raise BadMessage(f"a value of {size} bytes is announced")
        if not size and tensor == TOMBSTONE:
            self._values.delete([asked.key])
            return
        with self._values.room(asked.key, size + _TAIL.size, limits.wait) as room:
            with self._connection.transfer(size) as deadline:
                if room is None:
                    self._stream.skip(size, deadline)
                else:
                    self._stream.fill(room.data[:size], deadline)
            if room is not None:
                tail = tensor.format, tensor.dtype, *tensor.shape, tensor.location
                room.data[size:] = _TAIL.pack(*tail)
            kept = room is not None and self._values.keep([room]) == [True]
        if not kept:
            self._values.delete([asked.key])

    def _get(self, name: bytes) -> None:
        try:
            with self._values.lent(name, self._connection.limits.wait) as lent:
                if lent is not None:
                    size = len(lent) - _TAIL.size
                    form, dtype, a, b, c, d, location = _TAIL.unpack(lent[size:])
                    answer = AnswerHead(True, size, Tensor(form, dtype, (a, b, c, d), location))
                    with self._connection.transfer(size) as deadline:
                        self._stream.send([answer.pack(), lent[:size]], deadline)
                    return
        except Unreadable as error:
            log.info("lm: %s", error)
        self._send(AnswerHead(False, 0, NOTHING))

    def _names(self) -> list[bytes]:
        names: list[bytes] = []
        after = b""
        while len(names) < _MOST_NAMES and (page := self._values.list(after, _PAGE)):
            names += [kept.name for kept in page]
            after = names[-1]
        return names

    def _send(self, answer: AnswerHead, data: bytes = b"") -> None:
        with self._connection.transfer(len(data)) as deadline:
            self._stream.send([answer.pack(), data], deadline)


def _is_a_wire(wire: LMWire) -> Wire:
    return wire  # mypy checks here that it keeps the protocol's promises
