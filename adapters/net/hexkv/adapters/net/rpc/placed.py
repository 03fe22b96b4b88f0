"""A session whose connection has a place of a listener."""

from __future__ import annotations

from threading import Event
from typing import Any

from hexkv.adapters.net.rpc.asked import ClientBounds, Request
from hexkv.adapters.net.rpc.session import Session
from hexkv.adapters.net.rpc.wire import Head
from hexkv.adapters.net.server.connection import Connection

_LOOK_UP = 60.0
"""Seconds of waiting for other threads, after which a thread looks again."""


class PlacedSession(Session):
    """Answers a known client; while nothing of it is under way, its place may be given to others.

    Args:
        connection: after the handshake.
        bounds: of the client.
        generation: of this server.
    """

    def __init__(
        self, connection: Connection, bounds: ClientBounds, *, generation: int = 0
    ) -> None:
        self._connection = connection
        self._end_of_all = Event()
        stream, clock = connection.stream, connection.clock
        super().__init__(
            stream.socket,
            stream.peer,
            clock,
            bounds,
            generation=generation,
            ended=lambda _: self._end_of_all.set(),
        )

    def attend(self) -> None:
        """Answer until the connection is over, and no thread uses it."""
        self.run()
        while not self._end_of_all.wait(_LOOK_UP):
            pass

    def note(self, asked: Head) -> Any:
        del asked
        self._connection.engage(self._connection.limits.patience)

    def _answer(self, asked: Request) -> Request | None:
        following = super()._answer(asked)
        with self._counting:  # a request that is read during this is noted after it
            if not self._under_way:
                self._connection.disengage()
        return following
