"""A channel over TCP connections, for any way of moving frames."""

from __future__ import annotations

import socket

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.peers.channel import LIMITS, OPEN, PeerChannel, Security
from hexkv.adapters.net.peers.direct import OwnMemory
from hexkv.adapters.net.peers.direct_line import DirectLine
from hexkv.adapters.net.peers.direct_session import DirectSession
from hexkv.adapters.net.peers.line import Line, greet
from hexkv.adapters.net.peers.session import PeerSession
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.server import listen
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Clock, Deadline, PeerSource


class TcpPeers(PeerChannel):
    """Reads from peers over TCP, and serves them. Closing a connection cancels its transfers.

    Args:
        address: where :meth:`serve` listens; port 0 takes a free one.
        clock: for deadlines.
        name: of this peer, for others.
        advertise: the host by which others reach it, if not that of *address*.
        security: a secret, and TLS.
        limits: of each served connection; ``max_value`` is the largest frame.
        connections: to each peer.
        clients: connections that are served at a time.
        memory: from which peers copy lent frames directly; ``None``: frames are sent.
    """

    def __init__(  # noqa: PLR0913
        self,
        address: Address,
        clock: Clock,
        *,
        name: str = "",
        advertise: str = "",
        security: Security = OPEN,
        limits: Limits = LIMITS,
        connections: int = 4,
        clients: int = 64,
        memory: OwnMemory | None = None,
    ) -> None:
        super().__init__(
            clock,
            limits,
            connections=connections,
            clients=clients,
            security=security,
        )
        self._address = address
        self._name = name
        self._advertise = advertise
        self._memory = memory

    def listen(self) -> tuple[socket.socket, str]:
        listener = listen(self._address.host, self._address.port)
        host, port = listener.getsockname()[:2]
        self._address = Address(self._address.host, port)
        return listener, str(Address(self._advertise or host, port))

    def place(self, address: str) -> Address:
        return Address.parse(address)

    def line(self, stream: Stream, deadline: Deadline) -> Line:
        secret, largest, memory = self._security.secret, self._limits.max_value, self._memory
        if memory is None:
            return Line(stream, greet(stream, secret, self._name, largest, deadline))
        terms = greet(stream, secret, self._name, largest, deadline, memory.magic)
        return DirectLine(stream, terms, memory, memory.meet(stream, deadline))

    def session(self, connection: Connection, source: PeerSource, generation: int) -> PeerSession:
        secret, memory = self._security.secret, self._memory
        if memory is None:
            return PeerSession(connection, source, generation, secret)
        return DirectSession(connection, source, generation, secret, memory)
