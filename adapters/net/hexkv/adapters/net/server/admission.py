"""Connections within limits: a thread for each, and silent clients give way.

A thread with blocking sockets for each connection, and no event loop: on two cores both move the
same number of bytes per second, while the kernel copies and the GIL is free. A thread needs no
state machine, and one that waits for a slow client delays no other client.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from threading import Condition, Thread, current_thread

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime, Untrusted
from hexkv.adapters.net.server.client_check import ClientCheck
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.net.unix import peer_of
from hexkv.ports import Clock, Deadline, EngineClosed, StoreUnreachable

log = logging.getLogger(__name__)

_PARTING = 1.0
"""Seconds that a new connection waits for the end of connections that gave way."""

_QUIET = 60.0
"""Seconds between two log lines about connections that were turned away."""


class TurnedAway(StrEnum):
    """The reason why a server ended a connection, or did not accept it."""

    FULL = "full"
    """All places were taken by busy clients."""

    SILENT = "silent"
    """It gave way to a new connection before its first request."""

    IDLE = "idle"
    """It gave way to a new connection between two requests."""

    LATE = "late"
    """It did not make its first request in time."""

    REFUSED = "refused"
    """It does not speak the protocol, or may not connect."""


@dataclass(slots=True, eq=False)
class _Client:
    """One connection and the thread that answers it."""

    connection: Connection
    thread: Thread | None = None
    dismissed: bool = False
    """True once it was ended to free its place; its thread has not noticed yet."""


class Admission:
    """The places of one listener, and the connections that have them.

    Every listener has one, for any protocol. :meth:`admit` is for one thread.
    """

    def __init__(
        self,
        attend: Callable[[Connection], None],
        clock: Clock,
        limits: Limits,
        *,
        connections: int = 64,
        tls: ssl.SSLContext | None = None,
        check: ClientCheck | None = None,
        name: str = "hexkv client",
    ) -> None:
        """Admit connections.

        Args:
            attend: answers one connection until it ends, by any error of the network layer.
            clock: for deadlines.
            limits: of each connection.
            connections: the number allowed. One more takes the place of the one that the server has
                waited for longest, less the time of its bytes; it is turned away if all are busy.
                While half of them or more have not made a request, or proved that they know the
                secret, one of those gives way.
            tls: wraps every connection.
            check: checks each client before a byte of it is read; ``None``: *attend* does.
            name: of the threads, and in the log.
        """
        self._answer = attend
        self._clock = clock
        self._limits = limits
        self._connections = connections
        self._tls = tls
        self._check = check
        self._name = name
        self._lock = Condition()
        """Notified when a connection is over."""

        self._clients: dict[Connection, _Client] = {}
        self.turned_away: Counter[TurnedAway] = Counter()
        """The number of connections turned away, by reason."""

        self._unsaid: Counter[TurnedAway] = Counter()
        """The ones not logged yet."""

        self._cause = ""
        """The cause of the last refusal among them."""

        self._next_line = clock.now()

    @property
    def clients(self) -> int:
        """The number of connections."""
        return len(self._clients)

    @property
    def attending(self) -> bool:
        """True in a thread that answers one of the connections."""
        here = current_thread()
        with self._lock:
            return any(client.thread is here for client in self._clients.values())

    def admit(self, sock: socket.socket) -> None:
        """Start a thread to answer *sock*, which this object owns from now on."""
        try:
            if self._tls is not None:
                # Here and without the handshake, so that :meth:`end` always finds the socket.
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(Stream(sock, _name_of(sock)), self._limits, self._clock)
        except OSError:  # it is over already
            sock.close()
            return
        client = _Client(connection)
        with self._lock:
            room = self._make_room()
            self._clients[connection] = client
        self._write_line()
        if not room:
            self._leave(client)
            return
        client.thread = Thread(target=self._attend, args=(client,), name=self._name, daemon=True)
        try:
            client.thread.start()
        except RuntimeError as error:  # no thread can start
            self._turn_away(TurnedAway.FULL, str(error))
            self._leave(client)

    def release(self, connection: Connection) -> socket.socket:
        """Free the place of *connection*, and return its socket, which the caller then owns.

        For the thread that answers it.
        """
        sock = connection.stream.detach()
        with self._lock:
            self._clients.pop(connection, None)
            self._lock.notify()
        return sock

    def end(self, seconds: float) -> None:
        """End every connection, and wait at most *seconds* for their threads."""
        until = Deadline.after(self._clock, seconds)
        with self._lock:
            clients = list(self._clients.values())
        for client in clients:
            client.connection.stream.abort()
        for client in clients:
            if client.thread is not None and client.thread is not current_thread():
                client.thread.join(max(0.0, until.remaining()))

    def _make_room(self) -> bool:
        """End the connection that gives way to a new one, if one has to. False if none can."""
        # Dismissed connections end once their threads notice: the new one waits for that.
        few = self._lock.wait_for(lambda: len(self._clients) < 2 * self._connections, _PARTING)
        if not few:
            self._count(TurnedAway.FULL)
            return False
        there = [it for it in self._clients.values() if not it.dismissed]
        if len(there) < self._connections:
            return True
        strangers = [it for it in there if not it.connection.known]
        if len(strangers) >= max(1, self._connections // 2):
            client = strangers[0]  # in the order of their arrival: no system call is needed
        else:
            lags = [(lag, it) for it in there if (lag := it.connection.lag) is not None]
            if not lags:
                self._count(TurnedAway.FULL)
                return False
            _, client = max(lags, key=itemgetter(0))
        self._count(TurnedAway.IDLE if client.connection.known else TurnedAway.SILENT)
        client.dismissed = True
        client.connection.stream.abort()
        return True

    def _attend(self, client: _Client) -> None:
        connection = client.connection
        try:
            if self._check is not None:
                self._check.check(connection.stream)
            connection.await_first()
            connection.stream.secure(connection.opening)
            self._answer(connection)
        except OutOfTime:
            if not (connection.known or client.dismissed):
                self._turn_away(TurnedAway.LATE)
        except StoreUnreachable as error:
            gone = isinstance(error, ConnectionBroken) and not isinstance(error, Untrusted)
            if not (gone or client.dismissed):
                self._turn_away(TurnedAway.REFUSED, str(error))
        except (EngineClosed, OSError):
            pass  # clients come and go
        except Exception:
            log.exception("a connection is closed")
        finally:
            self._leave(client)

    def _turn_away(self, why: TurnedAway, cause: str = "") -> None:
        with self._lock:
            self._count(why)
            self._cause = cause or self._cause
        self._write_line()

    def _count(self, why: TurnedAway) -> None:
        """Count a connection. For the holder of the lock."""
        self.turned_away[why] += 1
        self._unsaid[why] += 1

    def _write_line(self) -> None:
        """Log the counts not logged yet: at once, then once a minute at most."""
        with self._lock:
            now = self._clock.now()
            if not self._unsaid or now < self._next_line:
                return
            self._next_line = now + _QUIET
            counts = ", ".join(f"{count} {why}" for why, count in self._unsaid.items())
            cause = self._cause and f" ({self._cause})"
            self._unsaid.clear()
            self._cause = ""
        log.warning("%s: connections turned away: %s%s", self._name, counts, cause)

    def _leave(self, client: _Client) -> None:
        with self._lock:
            self._clients.pop(client.connection, None)
            self._lock.notify()
        client.connection.stream.close()


def _name_of(sock: socket.socket) -> str:
    """Return the client's name, for messages.

    Raises:
        OSError: the connection is over already.
    """
    if sock.family == socket.AF_UNIX:
        pid, uid, _ = peer_of(sock)
        return f"pid {pid} uid {uid}"
    return str(Address(*sock.getpeername()[:2]))
