"""The connections to one server: each logs in, serves one call at a time, and is kept."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.pool import Pool
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.redis._replies import error_of
from hexkv.adapters.redis._wire import ErrorReply, RedisStream, request
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.ports import Deadline

_IDLE = 16
"""Idle connections kept: more than the core has workers for one tier."""


@dataclass(frozen=True, slots=True)
class Login:
    """The parameters of connections, except the address."""

    username: str = ""
    password: Secret = NO_SECRET
    database: int = 0
    tls: ssl.SSLContext | None = None

    patience: float = 1.0
    """Seconds to wait for a connection, if the deadline is not earlier."""

    @property
    def requests(self) -> Sequence[Sequence[str]]:
        """The commands to send on a new connection."""
        user = [self.username] if self.username else []
        found = [["AUTH", *user, self.password.reveal()]] if user or self.password else []
        return [*found, ["SELECT", str(self.database)]] if self.database else found


class Server:
    """One server, with a pool of connections to it."""

    def __init__(self, address: Address, login: Login) -> None:
        self.address = address
        self._login = login
        self._pool = Pool(
            address, self._logged_in, tls=login.tls, idle=_IDLE, patience=login.patience
        )

    @contextmanager
    def wire(self, deadline: Deadline) -> Iterator[RedisStream]:
        """A connection for a block, which is closed if the block raises any error.

        Raises:
            OutOfTime: the deadline passed before one was open.
            StoreUnreachable: the server cannot be reached at present.
            StoreError: it refuses the login, or was closed.
        """
        with self._pool.connection(deadline) as wire:
            yield wire

    def close(self) -> None:
        """Close idle connections, and break those in use."""
        self._pool.close()

    def _logged_in(self, stream: Stream, deadline: Deadline) -> RedisStream:
        """Log in on *stream* and select the database.

        Raises:
            StoreError: the server refuses.
        """
        wire = RedisStream(stream)
        for words in self._login.requests:
            wire.send([request(*words)], deadline)
            try:
                wire.reply(deadline)
            except ErrorReply as error:
                refusal = error_of(error.args[0])
                raise type(refusal)(f"{words[0]} is refused: {refusal}") from error
        return wire
