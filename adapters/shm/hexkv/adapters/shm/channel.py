"""The channel over shared memory: peers of one machine copy out of each other's pools."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from pathlib import Path
from secrets import token_hex

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import Refused
from hexkv.adapters.net.peers.channel import LIMITS, PeerChannel, Security
from hexkv.adapters.net.peers.direct_line import DirectLine
from hexkv.adapters.net.peers.direct_session import DirectSession
from hexkv.adapters.net.peers.line import Line, greet
from hexkv.adapters.net.peers.session import PeerSession
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.accepting import BACKLOG
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.listening import bind, unbind
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.shm.memory import SharedMemory
from hexkv.adapters.shm.places import path_of
from hexkv.ports import (
    Clock,
    ConfigError,
    Deadline,
    MemoryRegion,
    PeerSource,
    SupportsRegistration,
)


class ShmChannel(PeerChannel):
    """Reads from the pools of other processes of this machine, and shares this one's with them.

    Args:
        clock: for deadlines.
        listen: the address of :meth:`serve`: a path, ``@name`` for an abstract one, or empty for a
            unique name.
        name: of this peer, for others.
        secret: that peers must know, beside running as an allowed user.
        users: that may connect, and be connected to, beside this process's own user and root.
        mode: of the socket at a path.
        limits: of each served connection; ``max_value`` is the largest frame, and the number of
            bytes that a connection leases at a time.
        connections: to each peer.
        clients: connections that are served at a time.
    """

    def __init__(  # noqa: PLR0913
        self,
        clock: Clock,
        *,
        listen: str = "",
        name: str = "",
        secret: SecretSource = b"",
        users: Collection[int] = (),
        mode: int = 0o600,
        limits: Limits = LIMITS,
        connections: int = 4,
        clients: int = 64,
    ) -> None:
        self._allowed = frozenset({0, os.geteuid(), *users})
        super().__init__(
            clock,
            limits,
            connections=connections,
            clients=clients,
            security=Security(secret),
            users=self._allowed,
        )
        self._listen = listen
        self._name = name
        self._mode = mode
        self._path: Path | None = None
        self._owned = -1
        """The descriptor of the lock of the process that serves a path."""

        self._memory = SharedMemory()

    def register(self, region: MemoryRegion) -> None:
        """Share *region* with peers. Chunks outside it are sent over the socket."""
        self._memory.register(region)

    def listen(self) -> tuple[socket.socket, str]:
        text = self._listen = self._listen or f"@hexkv-{token_hex(8)}"
        path = path_of(text)
        if path.startswith("/"):
            self._path = Path(path)
            listener, self._owned = bind(self._path, self._mode)
            return listener, text
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise ConfigError(f"cannot listen at {text}: {error.strerror}") from error
        return listener, text

    def place(self, address: str) -> Address:
        return Address(path=path_of(address))

    def line(self, stream: Stream, deadline: Deadline) -> Line:
        process = stream.process
        if process.uid not in self._allowed:
            raise Refused(f"process {process.pid} is one of user {process.uid}")
        largest, magic = self._limits.max_value, self._memory.magic
        terms = greet(stream, self._security.secret, self._name, largest, deadline, magic)
        return DirectLine(stream, terms, self._memory, self._memory.meet(stream, deadline))

    def session(self, connection: Connection, source: PeerSource, generation: int) -> PeerSession:
        return DirectSession(connection, source, generation, self._security.secret, self._memory)

    def left(self) -> None:
        if self._owned >= 0:
            if self._path is not None:
                unbind(self._path)
            os.close(self._owned)
            self._owned = -1

    def close(self) -> None:
        super().close()
        self._memory.close()


def _registers(channel: ShmChannel) -> SupportsRegistration:
    return channel  # mypy checks here that it accepts the pool's memory
