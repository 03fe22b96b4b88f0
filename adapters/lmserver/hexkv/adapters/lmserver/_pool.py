"""A client's connections: a bounded number, one to a caller, none that is in doubt."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
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
    """A connection to *address*.

    Raises:
        OSError: there is none, or it was not made in time.
    """
    remaining = deadline.remaining()
    if not remaining:
        raise TimeoutError("the deadline has passed")
    sock = socket.create_connection(address, remaining)
    try:
        if tls is not None:
            sock.settimeout(max(deadline.remaining(), 0.001))  # 0 would not wait at all
            sock = tls.wrap_socket(sock, server_hostname=address.host)
        return Stream(sock)
    except BaseException:
        sock.close()
        raise


class Pool:
    """Connections to one server.

    Args:
        connect: makes one.
        most: how many calls may be under way.
    """

    def __init__(self, connect: Callable[[Deadline], Peer], most: int) -> None:
        self._connect = connect
        self._slots = BoundedSemaphore(most)
        self._lock = Lock()
        self._idle: list[Peer] = []
        self._busy: set[Peer] = set()
        self._closed = False

    @contextmanager
    def peer(self, deadline: Deadline) -> Iterator[Peer]:
        """A connection for one call. It is dropped if the call raises anything at all.

        Raises:
            StoreError: the pool is closed.
            TimeoutError: no connection came free in time.
            OSError: none could be made.
        """
        if not self._slots.acquire(timeout=deadline.remaining()):
            raise TimeoutError("no connection came free in time")
        try:
            peer = self._reuse() or self._admit(self._connect(deadline))
            try:
                yield peer
            except BaseException:
                self._drop(peer)
                raise
            self._put_back(peer)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close idle connections; have calls that are under way fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for peer in idle:
            peer.stream.close()
        for peer in busy:
            peer.stream.abort()

    def _reuse(self) -> Peer | None:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreError("the store is closed")
                if not self._idle:
                    return None
                peer = self._idle.pop()
                self._busy.add(peer)
            if not peer.stream.stale:
                return peer
            self._drop(peer)

    def _admit(self, peer: Peer) -> Peer:
        with self._lock:
            if not self._closed:
                self._busy.add(peer)
                return peer
        peer.stream.close()
        raise StoreError("the store is closed")

    def _put_back(self, peer: Peer) -> None:
        with self._lock:
            self._busy.discard(peer)
            if not self._closed:
                self._idle.append(peer)
                return
        peer.stream.close()

    def _drop(self, peer: Peer) -> None:
        with self._lock:
            self._busy.discard(peer)
        peer.stream.close()
