"""The connections to an endpoint: a bounded number, each used by one call at a time."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock

from hexkv.adapters.s3._wire import OutOfTime, TLSWire, Wire, left_of
from hexkv.adapters.s3.address import Endpoint
from hexkv.ports import ConfigError, Deadline, StoreError, StoreUnreachable


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to believe that they are the server."""

    authorities: str = ""
    """File of the certificates that sign servers'; empty for the system's."""

    verify: bool = True
    """Whether a certificate must be signed and have the server's name."""

    def context(self) -> ssl.SSLContext:
        """What encrypts connections.

        Raises:
            ConfigError: the authorities cannot be read.
        """
        try:
            context = ssl.create_default_context(cafile=self.authorities or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"tls_authorities: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Pool:
    """Connections to *endpoint*, opened when a call needs one and kept for the next.

    Args:
        endpoint: where they lead.
        most: how many there are at most; further calls wait for one.
        patience: seconds to wait for a connection, where the deadline does not come first.
        tls: what encrypts them; ``None`` for plain ones.
    """

    def __init__(
        self, endpoint: Endpoint, most: int, patience: float, tls: ssl.SSLContext | None
    ) -> None:
        self._endpoint = endpoint
        self._patience = patience
        self._tls = tls
        self._turns = BoundedSemaphore(most)
        self._lock = Lock()
        self._idle: list[Wire] = []
        self._used: set[Wire] = set()
        self._closed = False

    @contextmanager
    def wire(self, deadline: Deadline, *, fresh: bool = False) -> Iterator[Wire]:
        """A connection for one request, kept only if all of the reply was taken.

        Args:
            deadline: for opening one, and for waiting until another call gives one back.
            fresh: none that was used before.

        Raises:
            OutOfTime: the deadline passed before one was open.
            StoreUnreachable: the server cannot be reached at present.
            StoreError: it is not the one that it should be, or the pool was closed.
        """
        if not self._turns.acquire(timeout=left_of(deadline)):
            raise OutOfTime
        try:
            wire = (None if fresh else self._kept()) or self._opened(deadline)
            try:
                yield wire
            finally:
                self._put_back(wire)
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close what is idle, and break what is in use. Calling it twice is allowed."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            # Under the lock, so that none of their sockets is closed, and its number used again.
            for wire in self._used:
                wire.hang_up()
        for wire in idle:
            wire.close()

    def _kept(self) -> Wire | None:
        while True:
            with self._lock:
                self._must_be_open()
                if not self._idle:
                    return None
                wire = self._idle.pop()
                # A server that was restarted, or waited too long, has closed all of these.
                if wire.quiet:
                    self._used.add(wire)
                    return wire
            wire.close()

    def _opened(self, deadline: Deadline) -> Wire:
        where = self._endpoint
        patience = min(self._patience, left_of(deadline))
        sock = None
        try:
            sock = socket.create_connection((where.host, where.port), patience)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=where.host)
        except ssl.SSLCertVerificationError as error:
            _give_up(sock)
            raise StoreError(f"{where.authority} is not to be believed: {error}") from error
        except OSError as error:
            _give_up(sock)
            if deadline.expired:
                raise OutOfTime from error
            raise StoreUnreachable(f"{where.authority}: {error}") from error
        wire = Wire(sock) if self._tls is None else TLSWire(sock)
        with self._lock:
            if not self._closed:
                self._used.add(wire)
                return wire
        wire.close()
        raise StoreError("the store is closed")

    def _put_back(self, wire: Wire) -> None:
        with self._lock:
            self._used.discard(wire)
            if wire.free and not self._closed:
                self._idle.append(wire)
                return
            wire.close()

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def _give_up(sock: socket.socket | None) -> None:
    if sock is not None:
        with suppress(OSError):
            sock.close()
