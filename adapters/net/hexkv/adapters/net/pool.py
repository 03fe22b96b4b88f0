"""A client's connections to one server: a bounded number, one for each call, none in doubt."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime, time_left
from hexkv.adapters.net.stream import Stream, connect
from hexkv.ports import Deadline, StoreError, StoreUnreachable


class Connection(Protocol):
    """A stream, and the protocol's knowledge of its state."""

    @property
    def stream(self) -> Stream:
        """The stream that carries the bytes."""
        ...

    def reusable(self, *, well: bool) -> bool:
        """True if another request may be sent: the last reply was received whole.

        Args:
            well: the call that used the connection raised nothing.
        """
        ...


C = TypeVar("C", bound=Connection)

_CLOSED = "the store is closed"


class Pool(Generic[C]):
    """Connections to one server, made when a call needs one and kept for the next.

    Args:
        address: of the server.
        ready: exchanges over a new connection, after TLS, what precedes the first request.
        tls: encrypts connections; ``None`` for plain ones.
        most: the number of calls that may have a connection; further ones wait, in order. ``None``:
            any number.
        idle: the number of connections kept; ``None``: as many as there were at a time.
        patience: seconds for a new connection, with TLS and *ready*, unless the deadline comes
            first; ``None``: the deadline alone.
    """

    def __init__(
        self,
        address: Address,
        ready: Callable[[Stream, Deadline], C],
        *,
        tls: ssl.SSLContext | None = None,
        most: int | None = None,
        idle: int | None = None,
        patience: float | None = None,
    ) -> None:
        self.address = address
        self._ready = ready
        self._tls = tls
        self._turns = _Turns(most)
        self._keep = idle
        self._patience = patience
        self._lock = Lock()
        self._idle: list[C] = []
        self._busy: set[Stream] = set()
        self._closed = False

    @contextmanager
    def connection(self, deadline: Deadline, *, fresh: bool = False) -> Iterator[C]:
        """Yield a connection for one call, kept afterwards only if it is ``reusable``.

        Args:
            deadline: for making one, and for the wait until another call returns one.
            fresh: do not take one that was used before.

        Raises:
            OutOfTime: the deadline passed before there was one.
            StoreUnreachable: the server cannot be reached at present.
            StoreError: the pool is closed.
        """
        self._turns.take(deadline)
        try:
            connection = (None if fresh else self._kept()) or self._made(deadline)
            well = False
            try:
                yield connection
                well = True
            finally:
                self._put_back(connection, well=well)
        finally:
            self._turns.give()

    def close(self) -> None:
        """Close idle connections; calls that use one, or wait for one, fail now.

        Calling it twice is allowed. A TCP connection that is being made is not interrupted:
        it ends with its patience or deadline.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            # Under the lock, so that none of their sockets is closed and its descriptor reused.
            for stream in self._busy:
                stream.abort()
        for connection in idle:
            connection.stream.close()
        self._turns.end()

    def _kept(self) -> C | None:
        while True:
            with self._lock:
                self._must_be_open()
                if not self._idle:
                    return None
                connection = self._idle.pop()
                self._busy.add(connection.stream)
            # A server that was restarted has closed all of these.
            if connection.stream.quiet:
                return connection
            self._drop(connection.stream)

    def _made(self, deadline: Deadline) -> C:
        soon, impatient = deadline, False
        if self._patience is not None and self._patience < time_left(deadline):
            soon, impatient = Deadline.after(deadline.clock, self._patience), True
        try:
            return self._greeted(connect(self.address, soon, self._tls), soon)
        except OutOfTime as error:
            if not impatient:
                raise
            raise StoreUnreachable(
                f"{self.address} did not answer within {self._patience:g} s"
            ) from error

    def _greeted(self, stream: Stream, deadline: Deadline) -> C:
        with self._lock:
            # From here on, closing the pool ends it: the server may never answer a greeting.
            self._busy.add(stream)
            closed = self._closed
        if closed:
            self._drop(stream)
            raise StoreError(_CLOSED)
        try:
            stream.secure(deadline)
            return self._ready(stream, deadline)
        except BaseException as error:
            self._drop(stream)
            if isinstance(error, StoreError) and not isinstance(error, ConnectionBroken):
                # Only an error of the connection itself names its address already.
                raise type(error)(f"{self.address}: {error}") from error
            raise

    def _put_back(self, connection: C, *, well: bool) -> None:
        stream = connection.stream
        with self._lock:
            self._busy.discard(stream)
            full = self._keep is not None and len(self._idle) >= self._keep
            if (
                not (self._closed or full)
                and connection.reusable(well=well)
                # Unexpected bytes are no answer to the next request either.
                and stream.drained
            ):
                self._idle.append(connection)
                return
        stream.close()

    def _drop(self, stream: Stream) -> None:
        with self._lock:
            self._busy.discard(stream)
        stream.close()

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError(_CLOSED)


_LONGEST = 86_400.0
"""Seconds that every lock accepts as a time-out."""


class _Turns:
    """A bounded number of turns, given in the order of requests."""

    def __init__(self, most: int | None) -> None:
        self._free = most
        self._lock = Lock()
        self._waiting: deque[Lock] = deque()
        """One lock for each call that waits, released when it is its turn."""
        self._over = False

    def end(self) -> None:
        """Fail all waiting calls, and all later ones."""
        with self._lock:
            self._over = True
            while self._waiting:
                self._waiting.popleft().release()

    def take(self, deadline: Deadline) -> None:
        """Take a turn, which :meth:`give` ends.

        Raises:
            OutOfTime: none became free in time.
            StoreError: the pool is closed.
        """
        seconds = time_left(deadline)
        if self._free is None:
            return
        with self._lock:
            if self._over:
                raise StoreError(_CLOSED)
            if self._free:
                self._free -= 1
                return
            mine = Lock()
            mine.acquire()
            self._waiting.append(mine)
        if not mine.acquire(timeout=min(seconds, _LONGEST)):
            with self._lock:
                # The turn may have come at this moment; then it is taken.
                if mine in self._waiting:
                    self._waiting.remove(mine)
                    raise OutOfTime("no connection came free in time")
        if self._over:
            raise StoreError(_CLOSED)

    def give(self) -> None:
        """Give a turn back."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            elif self._free is not None:
                self._free += 1
