"""A channel over connections: a server for peers, and a pool of connections to each of them.

A subclass defines where it listens, the address of a peer, and both ends of a connection.
"""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Self

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.outcomes import answering, outcome_of, slices
from hexkv.adapters.net.peers.line import Line
from hexkv.adapters.net.peers.session import PeerSession
from hexkv.adapters.net.pool import Pool
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.server import StreamServer
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    MAX_QUESTION,
    Clock,
    ConfigError,
    Deadline,
    Failed,
    InvalidRequest,
    LeaseSink,
    Offer,
    Part,
    Peer,
    PeerSource,
    ReadOutcome,
    StoreError,
    StoreUnreachable,
    SupportsRenewal,
    SupportsSuspension,
    TimedOut,
    TransferChannel,
    WriteOutcome,
)

_PEERS = 256
"""Peers to which connections are kept. A directory may list any number."""

LIMITS = Limits(256 << 20)

_FAREWELL = 0.8
"""Seconds that closing waits for the server's threads."""


@dataclass(slots=True)
class _Known:
    """The connections to one peer, and the number of calls that use them."""

    pool: Pool[Line]
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Security:
    """The secret and TLS contexts by which peers authenticate each other."""

    secret: SecretSource = field(default=b"", repr=False)
    client: ssl.SSLContext | None = None
    """Encrypts connections to peers."""

    server: ssl.SSLContext | None = None
    """Encrypts connections from peers."""


OPEN = Security()


class PeerChannel(ABC):
    """Reads from peers over connections, and serves them.

    Args:
        clock: for deadlines.
        limits: of each connection that is served; ``max_value`` is the largest frame.
        connections: to each peer.
        clients: connections that are served at a time.
        security: a secret, and TLS.
        users: whose processes may be peers over a Unix socket, as of
            :class:`~hexkv.adapters.net.server.client_check.ClientCheck`.
    """

    def __init__(
        self,
        clock: Clock,
        limits: Limits,
        *,
        connections: int,
        clients: int,
        security: Security = OPEN,
        users: Collection[int] | None = None,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._connections = connections
        self._clients = clients
        self._security = security
        self._users = users
        self._lock = Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._server: StreamServer | None = None
        self._thread: Thread | None = None
        self._served: tuple[PeerSource, int] | None = None
        self._closed = False

    @abstractmethod
    def listen(self) -> tuple[socket.socket, str]:
        """Listen. Return the socket, and its address for peers, which stays the same.

        Raises:
            ConfigError: it cannot listen there, or is not allowed to.
        """

    @abstractmethod
    def place(self, address: str) -> Address:
        """Return the place of *address*, which a peer's :meth:`listen` returned.

        Raises:
            ValueError: it is none.
        """

    @abstractmethod
    def line(self, stream: Stream, deadline: Deadline) -> Line:
        """Greet a peer, as its client.

        Raises:
            OutOfTime, StoreUnreachable: it does not accept this process, or is no peer.
        """

    @abstractmethod
    def session(self, connection: Connection, source: PeerSource, generation: int) -> PeerSession:
        """Return a session that serves *source* to a peer."""

    def left(self) -> None:  # noqa: B027 - most have nothing to do
        """Release what :meth:`listen` took beside its socket, which is closed."""

    def serve(self, source: PeerSource, generation: int) -> Peer:
        with self._lock:
            if self._served is not None:
                raise ConfigError("a channel serves once")
        return Peer(self._serve(source, generation), generation)

    def renew(self, generation: int) -> None:
        if self._served is not None:
            self._served = self._served[0], generation

    def suspend(self) -> None:
        with self._lock:
            server, self._server = self._server, None
            thread, self._thread = self._thread, None
        if server is not None:
            # Another process soon owns the memory that is lent, so wait for sessions.
            _end(server, thread, self._limits.patience)
            self.left()

    def resume(self) -> None:
        self._must_be_open()
        if self._served is not None and self._server is None:
            self._serve(*self._served)

    def _serve(self, source: PeerSource, generation: int) -> str:
        listener, address = self.listen()
        try:

            def attend(connection: Connection) -> None:
                _, known = self._served or (source, generation)
                self.session(connection, source, known).run()

            server = StreamServer(
                listener,
                attend,
                self._clock,
                self._limits,
                connections=self._clients,
                secret=self._security.secret,
                tls=self._security.server,
                users=self._users,
                name="hexkv peer",
            )
            self._served = source, generation
            self._begin(server)
        except BaseException:
            self._served = None
            listener.close()
            self.left()
            raise
        return address

    def read(
        self, peer: Peer, wanted: Sequence[Part], sink: LeaseSink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        self._must_be_open()
        if not wanted:
            return []
        outcomes: list[ReadOutcome | None] = [None] * len(wanted)
        rest: Failed | TimedOut = TimedOut()
        try:
            with self._line(peer, deadline) as line:
                for some in slices(len(wanted), line.most):
                    parts = wanted[some.start : some.stop]
                    line.read(parts, some.start, sink, outcomes, deadline)
        except (OutOfTime, StoreError) as error:
            rest = outcome_of(error)
        return [rest if outcome is None else outcome for outcome in outcomes]

    def offer(
        self, peer: Peer, offers: Sequence[Offer], deadline: Deadline
    ) -> Sequence[WriteOutcome]:
        self._must_be_open()
        if not offers:
            return []
        outcomes: list[WriteOutcome | None] = [None] * len(offers)
        rest: Failed | TimedOut = TimedOut()
        try:
            with self._line(peer, deadline) as line:
                line.offer(offers, outcomes, deadline)
        except (OutOfTime, StoreError) as error:
            rest = outcome_of(error)
        return [rest if outcome is None else outcome for outcome in outcomes]

    def ask(self, peer: Peer, question: bytes, deadline: Deadline) -> bytes:
        if len(question) > MAX_QUESTION:
            raise InvalidRequest(f"a question of {len(question)} bytes, more than {MAX_QUESTION}")
        with answering(self._place(peer)), self._line(peer, deadline) as line:
            return line.question(question, deadline)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            known, self._known = list(self._known.values()), OrderedDict()
            server, thread = self._server, self._thread
        for one in known:
            one.pool.close()
        if server is not None:
            _end(server, thread, _FAREWELL)
        self.left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _line(self, peer: Peer, deadline: Deadline) -> Iterator[Line]:
        """Yield a connection to that generation of *peer*.

        Raises:
            OutOfTime, StoreError: there is none.
        """
        known = self._use(peer)
        try:
            with known.pool.connection(deadline) as line:
                if peer.generation not in (0, line.generation):
                    raise StoreUnreachable(f"{peer.address} was started anew")
                yield line
        finally:
            with self._lock:
                known.calls -= 1

    def _use(self, peer: Peer) -> _Known:
        """Return the connections to *peer*, and count one more call that uses them."""
        gone: list[_Known] = []
        with self._lock:
            self._must_be_open()
            known = self._known.pop(peer.address, None) or self._meet(self._place(peer))
            self._known[peer.address] = known
            known.calls += 1
            if len(self._known) > _PEERS:
                idle = [it for it, one in self._known.items() if not one.calls]
                gone = [self._known.pop(it) for it in idle[: len(self._known) - _PEERS]]
        for one in gone:
            one.pool.close()
        return known

    def _begin(self, server: StreamServer) -> None:
        with self._lock:
            self._must_be_open()
            if self._server is not None:
                raise ConfigError("a channel serves once")
            self._server = server
            self._thread = Thread(target=server.run, name="hexkv peers", daemon=True)
            self._thread.start()

    def _meet(self, address: Address) -> _Known:
        return _Known(Pool(address, self.line, tls=self._security.client, most=self._connections))

    def _place(self, peer: Peer) -> Address:
        """Return the place of *peer*.

        Raises:
            StoreUnreachable: its address, which others published, is invalid.
        """
        try:
            return self.place(peer.address)
        except ValueError as error:
            raise StoreUnreachable(str(error)) from error

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError("the channel is closed")


def _end(server: StreamServer, thread: Thread | None, seconds: float) -> None:
    server.stop()
    if thread is not None:
        thread.join(seconds)


def _may_be_suspended(channel: PeerChannel) -> tuple[SupportsSuspension, SupportsRenewal]:
    return channel, channel  # mypy checks here that the ports' promises are kept


def _is_a_channel(channel: PeerChannel) -> TransferChannel:
    return channel  # mypy checks here that the port's promises are kept
