"""A server of a cell, for other processes' :class:`~hexkv.adapters.directory.client`."""

from __future__ import annotations

import logging
import socket
import ssl

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.session import DirectorySession
from hexkv.adapters.directory.wire import HANDSHAKE, LARGEST
from hexkv.adapters.net.errors import Refused
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.server import StreamServer
from hexkv.plugins.notices import Notices
from hexkv.ports import Clock


class DirectoryServer(StreamServer):
    """Answers from a cell, each connection in a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        cell: Cell,
        clock: Clock,
        *,
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
        connections: int = 512,
        patience: float = 10.0,
    ) -> None:
        """Prepare to serve the clients of *listener*; :meth:`run` serves them.

        Args:
            listener: bound and listening; the server owns it from now on.
            cell: the cell to serve.
            clock: for deadlines.
            secret: that clients must know.
            tls: wraps every connection.
            connections: the number allowed, as in every :class:`StreamServer`.
            patience: seconds for a message that has begun.

        Raises:
            ConfigError: other machines could connect without any check.
        """
        self._cell = cell
        self._secret = secret
        verbs = ("is refused", "is admitted")
        self._notices = Notices(logging.getLogger(__name__), "directory", clock, verbs)
        super().__init__(
            listener,
            self._run_session,
            clock,
            Limits(LARGEST, patience=patience),
            connections=connections,
            secret=secret,
            tls=tls,
            name="hexkv directory",
        )

    def _run_session(self, connection: Connection) -> None:
        try:
            HANDSHAKE.answer(connection, self._secret, self._cell.heartbeat_seconds)
        except Refused as error:
            self._notices.failed("a client", str(error), lasts=False)
            raise
        DirectorySession(connection, self._cell, self._notices).attend()
