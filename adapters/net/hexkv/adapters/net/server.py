"""A server's connections: accepts them, one thread each, and keeps all of them within limits.

A thread with blocking sockets for each connection, and no event loop: on two cores both move
the same number of bytes per second, while the kernel copies and the GIL is free. A thread
needs no state machine, and one that waits for a slow client keeps nobody else waiting.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from threading import Condition, Thread

from hexkv.adapters.net.accepting import Acceptor
from hexkv.adapters.net.connection import Connection, Limits
from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Clock, ConfigError, EngineClosed, StoreUnreachable

log = logging.getLogger("hexkv")

_PARTING = 1.0
"""Seconds that who comes next waits for those who were sent away."""


@dataclass(slots=True, eq=False)
class _Client:
    """One connection and the thread that answers it."""

    connection: Connection
    thread: Thread | None = None
    dismissed: bool = False
    """True once it was ended to make room; its thread has not noticed yet."""


class StreamServer:
    """Has each connection answered by a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        attend: Callable[[Connection], None],
        clock: Clock,
        limits: Limits,
        *,
        connections: int = 64,
        tls: ssl.SSLContext | None = None,
        name: str = "hexkv client",
    ) -> None:
        """Serve what connects to *listener*; :meth:`run` does it.

        Args:
            listener: bound and listening, from now on the server's.
            attend: answers one connection until it ends, by any error of the network layer.
            clock: for deadlines.
            limits: of each connection.
            connections: how many there may be. One more takes the place of the one that the
                server has waited for longest, beside what its bytes take; it is turned away
                where all are being worked for. While half of them or more are of clients that
                have not made a request, or shown that they know the secret, it is one of those
                that gives way.
            tls: wraps every connection.
            name: of the threads.
        """
        self._listener = listener
        self._acceptor: Acceptor | None = None
        self._answer = attend
        self._clock = clock
        self._limits = limits
        self._connections = connections
        self._tls = tls
        self._name = name
        self._lock = Condition()
        """Told when a connection is over."""

        self._clients: set[_Client] = set()
        self._stopping = False  # a bool, for a signal handler must not wait for a lock

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, in TCP."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def clients(self) -> int:
        """How many connections there are."""
        return len(self._clients)

    def run(self) -> None:
        """Serve until :meth:`stop`; when this returns no connection is left."""
        acceptor = self._acceptor = Acceptor(self._listener)
        try:
            while not self._stopping:
                try:
                    sock = acceptor.accept()
                except OSError as error:
                    if not self._stopping:
                        log.warning("no connection can be accepted: %s", error)
                        time.sleep(0.1)  # out of file descriptors, perhaps
                    continue
                if sock is not None:
                    self._welcome(sock)
        finally:
            self._acceptor = None
            acceptor.close()
            self._part()

    def stop(self) -> None:
        """Have :meth:`run` end. From any thread, or from a signal handler."""
        self._stopping = True
        if (acceptor := self._acceptor) is not None:
            acceptor.wake()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                # Here and without the handshake, so that who ends this connection always finds it.
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(Stream(sock), self._limits, self._clock)
        except OSError:  # it is over already
            sock.close()
            return
        client = _Client(connection)
        with self._lock:
            room = self._make_room()
            self._clients.add(client)
        if not room:
            self._leave(client)
            return
        client.thread = Thread(target=self._attend, args=(client,), name=self._name, daemon=True)
        try:
            client.thread.start()
        except RuntimeError:  # the system gives no more threads
            self._leave(client)

    def _make_room(self) -> bool:
        """End the connection that gives way for one more, if one has to. False if none does."""
        # Those sent away go as soon as their threads notice: who comes next waits for that.
        few = self._lock.wait_for(lambda: len(self._clients) < 2 * self._connections, _PARTING)
        if not few:
            return False
        there = [it for it in self._clients if not it.dismissed]
        if len(there) < self._connections:
            return True
        strangers = [it for it in there if not it.connection.known]
        if len(strangers) >= max(1, self._connections // 2):
            there = strangers
        lags = [(lag, it) for it in there if (lag := it.connection.lag) is not None]
        if not lags:
            return False
        _, client = max(lags, key=itemgetter(0))
        client.dismissed = True
        client.connection.stream.abort()
        return True

    def _attend(self, client: _Client) -> None:
        try:
            connection = client.connection
            connection.stream.secure(connection.opening)
            self._answer(connection)
        except (OutOfTime, ConnectionBroken, EngineClosed, OSError):
            pass  # clients come and go
        except StoreUnreachable as error:  # it was refused, or does not speak the protocol
            log.info("a connection is closed: %s", error)
        except Exception:
            log.exception("a connection is closed")
        finally:
            self._leave(client)

    def _leave(self, client: _Client) -> None:
        with self._lock:
            self._clients.discard(client)
            self._lock.notify()
        client.connection.stream.close()

    def _part(self) -> None:
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.connection.stream.abort()
        for client in clients:
            if client.thread is not None:
                client.thread.join(self._limits.patience)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at an address or name; port 0 takes any free one.

    Raises:
        ConfigError: there is no such address here, or it is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error}") from error
