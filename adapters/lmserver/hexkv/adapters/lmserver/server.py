"""The server: accepts connections, one thread each, and keeps all of them within limits.

A thread with blocking sockets for each connection, and no event loop: on two cores both move
the same number of bytes per second, while the kernel copies and the GIL is free. A thread
needs no state machine, and one that waits for a slow client keeps nobody else waiting.
"""

from __future__ import annotations

import logging
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock, Thread

from hexkv.adapters.lmserver._session import Session
from hexkv.adapters.lmserver.handshake import Refused, answer
from hexkv.adapters.lmserver.values import ServedValues
from hexkv.adapters.lmserver.wire import MAGIC
from hexkv.adapters.net.connection import Connection, Limits
from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime
from hexkv.adapters.net.serving import START, Wire
from hexkv.adapters.net.serving import Session as AnySession
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Clock, ConfigError, EngineClosed

log = logging.getLogger("hexkv")

SCHEME = "hexkv"
"""Of the server's own wire."""

_LOOK_UP = 1.0
"""Seconds of waiting for somebody to connect, after which a server looks whether it is to end."""


@dataclass(slots=True, eq=False)
class _Client:
    """One connection and the thread that answers it."""

    connection: Connection
    thread: Thread | None = None
    dismissed: bool = False
    """True once it was ended to make room; its thread has not noticed yet."""


class Server:
    """Serves values over its own wire, and over those of plugins.

    Nothing is known of how a plugin's wire authenticates its clients, so it is spoken only where
    the server asks for neither a secret nor certificates.
    """

    def __init__(
        self,
        listener: socket.socket,
        values: ServedValues,
        clock: Clock,
        limits: Limits,
        *,
        wires: Sequence[Wire] = (),
        connections: int = 64,
        secret: bytes = b"",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve what connects to *listener*; :meth:`run` does it.

        Args:
            listener: bound and listening, from now on the server's.
            values: what is served, of every wire; closed by whoever made it, after :meth:`run`.
            clock: for deadlines.
            limits: of each connection.
            wires: what is spoken beside the server's own wire.
            connections: how many there may be. One more takes the place of the one that the
                server has waited for longest, beside what its bytes take; it is turned away
                where all are being worked for. While half of them or more are of clients that
                have not made a request, or shown that they know the secret, it is one of those
                that gives way.
            secret: that clients must know.
            tls: wraps every connection.

        Raises:
            ConfigError: other machines could connect, and nothing keeps anybody out; or two
                wires begin alike.
        """
        if not (secret or _asks_for_certificates(tls)) and not is_local(listener.getsockname()[0]):
            raise ConfigError(
                f"{listener.getsockname()[0]} can be reached from other machines: serving there"
                " takes a secret, or TLS that asks clients for certificates"
            )
        self._listener = listener
        # A signal that comes just before accept() begins wakes nobody: Python sees to it after.
        self._listener.settimeout(_LOOK_UP)
        self._values = values
        self._clock = clock
        self._limits = limits
        self._connections = connections
        self._secret = secret
        self._tls = tls
        self._wires = {} if secret or tls else _by_start(wires)
        self._lock = Lock()
        self._clients: set[_Client] = set()
        self._stopping = False  # a bool, for a signal handler must not wait for a lock

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def clients(self) -> int:
        """How many connections there are."""
        return len(self._clients)

    def run(self) -> None:
        """Serve until :meth:`stop`; when this returns no connection is left."""
        try:
            while not self._stopping:
                try:
                    sock, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:
                    if not self._stopping:
                        log.warning("no connection can be accepted: %s", error)
                        time.sleep(0.1)  # out of file descriptors, perhaps
                    continue
                self._welcome(sock)
        finally:
            self._listener.close()
            self._part()

    def stop(self) -> None:
        """Have :meth:`run` end. From any thread, or from a signal handler."""
        self._stopping = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()

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
        client.thread = Thread(
            target=self._attend, args=(client,), name="hexkv client", daemon=True
        )
        try:
            client.thread.start()
        except RuntimeError:  # the system gives no more threads
            self._leave(client)

    def _make_room(self) -> bool:
        """End the connection that gives way for one more, if one has to. False if none does."""
        # Those sent away go as soon as their threads notice: they are never many.
        if len(self._clients) >= 2 * self._connections:
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
            self._session(connection).run()
        except (BadMessage, Refused) as error:
            log.info("a connection is closed: %s", error)
        except (OutOfTime, ConnectionBroken, EngineClosed, OSError):
            pass  # clients come and go
        except Exception:
            log.exception("a connection is closed")
        finally:
            self._leave(client)

    def _session(self, connection: Connection) -> AnySession:
        start = connection.look(START)
        if (wire := self._wires.get(start)) is not None:
            return wire.session(connection, self._values.of(wire.scheme))
        if start != MAGIC[:START]:
            raise BadMessage("no wire that is spoken here begins like this")
        agreed = answer(connection, self._secret, secrets.token_bytes)
        values = self._values
        return Session(
            connection, values.of(SCHEME), checked=agreed.checked, durable=values.durable
        )

    def _leave(self, client: _Client) -> None:
        with self._lock:
            self._clients.discard(client)
        client.connection.stream.close()

    def _part(self) -> None:
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.connection.stream.abort()
        for client in clients:
            if client.thread is not None:
                client.thread.join(self._limits.patience)


def is_local(host: str) -> bool:
    """Whether only this machine can connect to *host*, an address."""
    return host == "::1" or host.startswith("127.")


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


def _by_start(wires: Sequence[Wire]) -> dict[bytes, Wire]:
    """The wire of each way in which a connection may begin.

    Raises:
        ConfigError: two wires begin alike, or have one name.
    """
    found: dict[bytes, Wire] = {}
    schemes = {SCHEME}
    for wire in wires:
        if wire.scheme in schemes:
            raise ConfigError(f"{wire.scheme}:// is spoken by another wire, too")
        schemes.add(wire.scheme)
        for start in wire.starts:
            if len(start) != START:
                raise ConfigError(f"a wire begins with {START} bytes; {wire.scheme}://: {start!r}")
            if start == MAGIC[:START] or start in found:
                raise ConfigError(f"{wire.scheme}:// begins as another wire does: {start!r}")
            found[start] = wire
    return found


def _asks_for_certificates(tls: ssl.SSLContext | None) -> bool:
    return tls is not None and tls.verify_mode == ssl.CERT_REQUIRED
