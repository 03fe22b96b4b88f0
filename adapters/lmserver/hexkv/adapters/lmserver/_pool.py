"""A client's connections: a bounded number, one to a caller, none that is in doubt."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import NamedTuple

from hexkv.adapters.lmserver._stream import Stream
from hexkv.ports import ConfigError, Deadline, StoreError


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, scheme: str) -> Address:
        """``host:port``, an IPv6 host in brackets, with or without ``scheme://``.

        Raises:
            ConfigError: it is something else.
        """
        bare = text.removeprefix(f"{scheme}://").rstrip("/")
        host, colon, port = bare.rpartition(":")
        if not colon or not host.strip("[]") or not port.isascii() or not port.isdigit():
            raise ConfigError(f"{text!r} is no address: expected {scheme}://host:port")
        if not 0 < int(port) < 65_536:
            raise ConfigError(f"{text!r} has no port between 1 and 65535")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Peer(NamedTuple):
    """A connection that is ready for requests."""

    stream: Stream
    max_entries: int
    max_value: int
    checked: bool = False


def connect(address: Address, deadline: Deadline, tls: ssl.SSLContext | None = None) -> Stream:
    """A connection to *address*; with *tls*, one whose handshake is still to come.

    Raises:
        OSError: there is none, or it was not made in time.
    """
    remaining = deadline.remaining()
    if not remaining:
        raise TimeoutError("the deadline has passed")
    sock = socket.create_connection(address, remaining)
    try:
        if tls is not None:
            host = address.host
            sock = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        return Stream(sock)
    except BaseException:
        sock.close()
        raise


class Pool:
    """Connections to one server.

    Args:
        connect: reaches the server.
        greet: says over a new connection what comes before the first request.
        most: how many calls may be under way.
    """

    def __init__(
        self,
        connect: Callable[[Deadline], Stream],
        greet: Callable[[Stream, Deadline], Peer],
        most: int,
    ) -> None:
        self._connect = connect
        self._greet = greet
        self._most = most
        self._turn = Condition()
        self._under_way = 0
        self._idle: list[Peer] = []
        self._busy: set[Stream] = set()
        self._closed = False

    @contextmanager
    def peer(self, deadline: Deadline) -> Iterator[Peer]:
        """A connection for one call. It is dropped if the call raises anything at all.

        Raises:
            StoreError: the pool is closed.
            TimeoutError: no connection came free in time.
            OSError: none could be made.
        """
        with self._turn:
            if not self._turn.wait_for(self._may_go, deadline.remaining()):
                raise TimeoutError("no connection came free in time")
            if self._closed:
                raise StoreError("the store is closed")
            self._under_way += 1
        try:
            peer = self._reuse() or self._new(deadline)
            try:
                yield peer
            except BaseException:
                self._drop(peer.stream)
                raise
            self._put_back(peer)
        finally:
            with self._turn:
                self._under_way -= 1
                self._turn.notify()

    def close(self) -> None:
        """Close idle connections; have calls that are under way, or wait for one, fail."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            idle, self._idle = self._idle, []
            # Under the lock, so that none of their sockets is closed, and its number used again.
            for stream in self._busy:
                stream.abort()
        for peer in idle:
            peer.stream.close()

    def _may_go(self) -> bool:
        return self._closed or self._under_way < self._most

    def _reuse(self) -> Peer | None:
        while True:
            with self._turn:
                if not self._idle or self._closed:
                    return None
                peer = self._idle.pop()
                self._busy.add(peer.stream)
            if not peer.stream.stale:
                return peer
            self._drop(peer.stream)

    def _new(self, deadline: Deadline) -> Peer:
        stream = self._connect(deadline)
        with self._turn:
            # From here on closing the pool ends it, for the server may never answer a greeting.
            self._busy.add(stream)
            closed = self._closed
        if closed:
            self._drop(stream)
            raise StoreError("the store is closed")
        try:
            return self._greet(stream, deadline)
        except BaseException:
            self._drop(stream)
            raise

    def _put_back(self, peer: Peer) -> None:
        with self._turn:
            self._busy.discard(peer.stream)
            if not self._closed:
                self._idle.append(peer)
                return
        peer.stream.close()

    def _drop(self, stream: Stream) -> None:
        with self._turn:
            self._busy.discard(stream)
        stream.close()
