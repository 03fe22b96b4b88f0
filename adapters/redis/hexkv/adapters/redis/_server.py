"""The connections to one server: opened by redis-py, used by one call at a time, then kept."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TooSlow

from hexkv.adapters.redis._wire import OutOfTime, TLSWire, Wire, left_of
from hexkv.adapters.redis.address import Address
from hexkv.ports import Deadline, StoreError, StoreUnreachable

_IDLE = 16
"""Connections kept for later: more than the core has workers for one tier."""


class Connecting(Protocol):
    """What is used of redis-py's connections."""

    @property
    def _sock(self) -> object:
        """The socket, once it is open."""
        ...

    def connect(self) -> None:
        """Open it, and log in."""
        ...

    def disconnect(self) -> None:
        """Close it."""
        ...


@dataclass(frozen=True, slots=True)
class TLS:
    """How servers are authenticated, and this client to them."""

    authorities: str = ""
    """File of the certificates that sign servers'; empty for the system's."""

    certificate: str = ""
    key: str = ""
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Login:
    """Everything about connections but where they lead."""

    username: str = ""
    password: str = ""
    database: int = 0
    tls: TLS | None = None

    patience: float = 1.0
    """Seconds to wait for a connection, where the deadline does not come first."""

    def connection(self, address: Address, deadline: Deadline) -> Connecting:
        """A connection to *address* that is still to be opened."""
        seconds = min(self.patience, left_of(deadline))
        settings: dict[str, object] = {
            "db": self.database,
            "username": self.username or None,
            "password": self.password or None,
            # RESP2 has no messages that come between replies.
            "protocol": 2,
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            # Two round trips that only name the library, and that a user may not be allowed.
            "driver_info": None,
        }
        if address.path:
            settings["path"] = address.path
        else:
            settings |= {"host": address.host, "port": address.port}
        if self.tls is not None:
            settings |= {
                "ssl_ca_certs": self.tls.authorities or None,
                "ssl_certfile": self.tls.certificate or None,
                "ssl_keyfile": self.tls.key or None,
                "ssl_cert_reqs": "required" if self.tls.verify else "none",
                "ssl_check_hostname": self.tls.verify,
            }
        return self._kind(address)(**settings)

    def _kind(self, address: Address) -> Callable[..., Connecting]:
        if address.path:
            return UnixDomainSocketConnection
        return Connection if self.tls is None else SSLConnection


class _Line:
    """A connection and what is said over it."""

    __slots__ = ("connection", "wire")

    def __init__(self, connection: Connecting, wire: Wire) -> None:
        self.connection = connection
        self.wire = wire


class Server:
    """One server, and as many connections to it as were needed at the same time."""

    def __init__(self, address: Address, login: Login) -> None:
        self.address = address
        self._login = login
        self._idle: list[_Line] = []
        self._open: set[_Line] = set()
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def wire(self, deadline: Deadline) -> Iterator[Wire]:
        """A connection for the time of a block, given up if anything at all goes wrong in it.

        Raises:
            OutOfTime: the deadline passed before one was open.
            StoreUnreachable: the server cannot be reached at present.
            StoreError: it does not let us in, or was closed.
        """
        line = self._kept() or self._opened(deadline)
        well = False
        try:
            yield line.wire
            well = True
        finally:
            self._put_back(line, well=well)

    def close(self) -> None:
        """Close what is idle, and break what is in use."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            used = self._open.difference(idle)
            # Under the lock, so that none of their sockets is closed, and its number used again.
            for line in used:
                line.wire.hang_up()
        for line in idle:
            self._put_back(line, well=False)

    def _kept(self) -> _Line | None:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreError("the store is closed")
                if not self._idle:
                    return None
                line = self._idle.pop()
            # A server that was restarted has closed all of these.
            if line.wire.quiet:
                return line
            self._put_back(line, well=False)

    def _opened(self, deadline: Deadline) -> _Line:
        connection = self._login.connection(self.address, deadline)
        try:
            connection.connect()
        except TooSlow as error:
            if deadline.expired:
                raise OutOfTime from error
            raise StoreUnreachable(f"{self.address} did not answer: {error}") from error
        except (AuthenticationError, AuthorizationError, ResponseError) as error:
            raise StoreError(f"{self.address} refused: {error}") from error
        except RedisError as error:
            raise StoreUnreachable(f"{self.address}: {error}") from error
        sock = connection._sock
        if not isinstance(sock, socket.socket):
            raise StoreUnreachable(f"{self.address} hung up at once")
        wire = TLSWire(sock) if isinstance(sock, ssl.SSLSocket) else Wire(sock)
        line = _Line(connection, wire)
        with self._lock:
            if not self._closed:
                self._open.add(line)
                return line
        connection.disconnect()
        raise StoreError("the store is closed")

    def _put_back(self, line: _Line, *, well: bool) -> None:
        with self._lock:
            if well and not self._closed and len(self._idle) < _IDLE:
                self._idle.append(line)
                return
            self._open.discard(line)
            line.connection.disconnect()
