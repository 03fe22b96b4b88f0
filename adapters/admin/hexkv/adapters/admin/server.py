"""The server of administration: accepts operators, one verb for each connection.

A client that sends nothing, or invalid data, is turned away after a few seconds, or earlier when
others come. Nothing larger than a greeting is received from a client that has not proved its
access.
"""

from __future__ import annotations

import logging
import ssl
from threading import BoundedSemaphore, Thread
from weakref import ref

from hexkv.adapters.admin.session import AdminSession
from hexkv.adapters.admin.wire import HANDSHAKE, MAX_REQUEST
from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime, Refused
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.client_check import OWN_AND_ROOT, Allowed
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.net.server.server import StreamServer
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Administration, Clock

log = logging.getLogger("hexkv.admin")

_OPENING = 5.0
"""Seconds for the greeting."""

_PARTING = 5.0


class AdminServer(StreamServer):
    """Serves administration from threads of its own, until :meth:`close`."""

    def __init__(
        self,
        administration: Administration,
        listener: Listener,
        clock: Clock,
        *,
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
        allowed: Allowed = OWN_AND_ROOT,
        clients: int = 16,
        verbs: int = 4,
    ) -> None:
        """Begin to serve.

        Args:
            administration: the object to serve; held by a strong reference only during a verb.
            listener: owned by the server from now on.
            clock: for deadlines.
            secret: that clients must know.
            tls: wraps every connection, if given.
            allowed: the processes that may connect to a Unix socket.
            clients: connections at a time.
            verbs: verbs that change something, at a time.
        """
        super().__init__(
            listener,
            self._run_session,
            clock,
            Limits(MAX_REQUEST, patience=_OPENING),
            connections=clients,
            tls=tls,
            name="hexkv admin client",
        )
        self._administration = ref(administration)
        self._local = bool(listener.address.path)
        self._secret = secret
        self._allowed = allowed
        self._verbs = BoundedSemaphore(verbs)
        self._thread = Thread(target=self.run, name="hexkv admin", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving. See :class:`hexkv.ports.ServedAdministration`."""
        self.stop()
        if not self.attending:  # otherwise the server's thread waits for this one
            self._thread.join(_PARTING)

    def _run_session(self, connection: Connection) -> None:
        name = connection.stream.peer
        try:
            if self._local:
                self._check_user(connection.stream)
            HANDSHAKE.answer(connection, self._secret)
        except (BadMessage, Refused) as error:
            log.info("admin: %s is turned away: %s", name, error)
            raise
        except (OutOfTime, ConnectionBroken, OSError) as error:
            log.info("admin: %s is gone: %s", name, error)
            raise
        AdminSession(connection, self._verbs, self._administration).attend()

    def _check_user(self, stream: Stream) -> None:
        """Check that the process at the other end of a Unix socket may connect.

        Raises:
            Refused: it may not.
        """
        pid, uid, gid = stream.process
        if not self._allowed.lets_in(uid, gid):
            raise Refused(f"process {pid} is user {uid} of group {gid}")
