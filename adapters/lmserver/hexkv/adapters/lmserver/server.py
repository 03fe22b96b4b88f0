"""The server: values over its own wire, and over those of plugins."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from hexkv.adapters.lmserver._session import ValueSession
from hexkv.adapters.lmserver.handshake import answer
from hexkv.adapters.lmserver.values import ServedValues
from hexkv.adapters.lmserver.wire import MAGIC
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.server import StreamServer
from hexkv.adapters.net.server.serving import START, Session, Wire
from hexkv.ports import Clock, ConfigError

SCHEME = "hexkv"
"""The scheme of the server's own wire."""


class Server(StreamServer):
    """Serves values over its own wire, and over those of plugins.

    The server does not know how a plugin's wire authenticates its clients, so it serves those
    wires only if it requires neither a secret nor certificates.
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
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve connections to *listener* in :meth:`run`.

        Args:
            listener: bound and listening; the server owns it from now on.
            values: of every wire; the caller closes them, after :meth:`run`.
            clock: for deadlines.
            limits: of each connection.
            wires: to serve besides the server's own.
            connections: the most at a time, as of every :class:`StreamServer`.
            secret: that clients must know.
            tls: wraps every connection.

        Raises:
            ConfigError: other machines could connect without authentication; or two wires
                begin alike.
        """
        self._wires = {} if secret or tls else _by_start(wires)
        self._values = values
        self._secret = secret
        super().__init__(
            listener,
            self._run_session,
            clock,
            limits,
            connections=connections,
            secret=secret,
            tls=tls,
            name="hexkv serve",
        )

    def _run_session(self, connection: Connection) -> None:
        self._session(connection).run()

    def _session(self, connection: Connection) -> Session:
        start = connection.look(START)
        if (wire := self._wires.get(start)) is not None:
            return wire.session(connection, self._values.of(wire.scheme))
        if start != MAGIC[:START]:
            raise BadMessage("no wire that is spoken here begins like this")
        agreed = answer(connection, self._secret)
        values = self._values
        return ValueSession(
            connection, values.of(SCHEME), checked=agreed.checked, durable=values.durable
        )


def _by_start(wires: Sequence[Wire]) -> dict[bytes, Wire]:
    """The wires by the first bytes of their connections.

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
