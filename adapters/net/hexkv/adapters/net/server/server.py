"""A server of connections: accepts them, and answers each within limits."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.accepting import BACKLOG, Accepting, Acceptor
from hexkv.adapters.net.server.admission import Admission, TurnedAway
from hexkv.adapters.net.server.client_check import ClientCheck, announce
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.ports import Clock, ConfigError

log = logging.getLogger(__name__)


class StreamServer:
    """Answers each connection in a thread of its own."""

    def __init__(  # noqa: PLR0913
        self,
        listener: socket.socket | Accepting,
        attend: Callable[[Connection], None],
        clock: Clock,
        limits: Limits,
        *,
        connections: int = 64,
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
        users: Collection[int] | None = None,
        public: bool = False,
        name: str = "hexkv client",
    ) -> None:
        """Prepare to serve the clients of *listener*; :meth:`run` serves them.

        Args:
            listener: bound and listening; the server owns it from now on.
            attend: as of :class:`Admission`, like all that follows.
            clock: for deadlines.
            limits: of each connection.
            connections: the number allowed.
            secret: that *attend* requires of clients; empty for none.
            tls: wraps every connection.
            users: whose processes may connect to a Unix socket, as of :class:`ClientCheck`.
            public: True if every client is answered; the caller announces the listener.
            name: of the threads, and in the log.

        Raises:
            ConfigError: clients could be anyone, see :class:`ClientCheck`; not if *public*.
        """
        check = None
        if isinstance(listener, socket.socket) and not public:
            check = ClientCheck(listener, secret, tls, users)
            announce(_place_of(listener), name, check)
        self._listener = listener
        self._acceptor: Accepting | None = None
        self._limits = limits
        self._admission = Admission(
            attend, clock, limits, connections=connections, tls=tls, check=check, name=name
        )
        self._stopping = False  # a bool, because a signal handler must not wait for a lock

    @property
    def address(self) -> tuple[str, int]:
        """The TCP address at which it listens."""
        listener = self._listener
        if not isinstance(listener, socket.socket):
            return listener.host, listener.port
        host, port = listener.getsockname()[:2]
        return host, port

    @property
    def clients(self) -> int:
        """The number of connections."""
        return self._admission.clients

    @property
    def attending(self) -> bool:
        """True in a thread that answers one of the connections."""
        return self._admission.attending

    @property
    def turned_away(self) -> Counter[TurnedAway]:
        """The number of connections turned away, by reason."""
        return self._admission.turned_away

    def run(self) -> None:
        """Serve until :meth:`stop`; when this returns no connection is left."""
        listener = self._listener
        acceptor = Acceptor(listener) if isinstance(listener, socket.socket) else listener
        self._acceptor = acceptor
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
                    self._admission.admit(sock)
        finally:
            self._acceptor = None
            acceptor.close()
            self._part()

    def stop(self) -> None:
        """Make :meth:`run` end. From any thread, or from a signal handler."""
        self._stopping = True
        if (acceptor := self._acceptor) is not None:
            acceptor.wake()

    def _part(self) -> None:
        self._admission.end(self._limits.patience)


def _place_of(listener: socket.socket) -> str:
    """Return the place at which a socket listens, for messages."""
    if listener.family == socket.AF_UNIX:
        name = listener.getsockname()
        return str(Address(path=name if isinstance(name, str) else os.fsdecode(name)))
    return str(Address(*listener.getsockname()[:2]))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address or name; port 0 takes any free one.

    Raises:
        ConfigError: there is no such address here, or it is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error}") from error
