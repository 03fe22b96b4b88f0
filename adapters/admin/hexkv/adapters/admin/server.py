"""The server of administration: lets operators in, one verb for each connection.

A thread for each connection, within limits: who sends nothing, or nonsense, is gone after a few
seconds, and gives way before that when others come. Nothing larger than a greeting is received
from who has not shown that it may ask.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock, Thread, current_thread
from weakref import ref

from hexkv.adapters.admin.handshake import Refused, answer
from hexkv.adapters.admin.session import AdminSession, Caller
from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime
from hexkv.adapters.net.listening import Listener
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.net.unix import peer_of
from hexkv.ports import Administration, Clock, Deadline

log = logging.getLogger("hexkv.admin")

_OPENING = 5.0
"""Seconds for the greeting and for the verb."""

_PARTING = 5.0


@dataclass(frozen=True, slots=True)
class Allowed:
    """Whose processes may connect to a Unix socket, beside root's and those of the cache's user."""

    uids: Collection[int] = field(default_factory=frozenset)
    gids: Collection[int] = field(default_factory=frozenset)
    """Of processes whose primary group it is."""

    def lets_in(self, uid: int, gid: int) -> bool:
        """True if a process of this user and group may ask."""
        return uid in (0, os.geteuid()) or uid in self.uids or gid in self.gids


@dataclass(slots=True, eq=False)
class _Client:
    """One connection, and whether it has been let in."""

    stream: Stream
    thread: Thread | None = None
    known: bool = False


class AdminServer:
    """Serves administration from threads of its own, until :meth:`close`."""

    def __init__(
        self,
        administration: Administration,
        listener: Listener,
        clock: Clock,
        *,
        secret: bytes = b"",
        tls: ssl.SSLContext | None = None,
        allowed: Allowed = Allowed(),
        clients: int = 16,
        verbs: int = 4,
    ) -> None:
        """Begin to serve.

        Args:
            administration: what is served; only referred to while a verb is under way.
            listener: from now on the server's.
            clock: for deadlines.
            secret: that clients must know.
            tls: wraps every connection, if given.
            allowed: who may connect to a Unix socket.
            clients: connections at a time.
            verbs: verbs that change something, at a time.
        """
        self._administration = ref(administration)
        self._listener = listener
        self._clock = clock
        self._secret = secret
        self._tls = tls
        self._allowed = allowed
        self._most = clients
        self._verbs = BoundedSemaphore(verbs)
        self._lock = Lock()
        self._clients: dict[_Client, None] = {}
        self._stopping = False
        self._thread = Thread(target=self._run, name="hexkv admin", daemon=True)
        self._thread.start()

    @property
    def clients(self) -> int:
        """How many connections there are."""
        return len(self._clients)

    def close(self) -> None:
        """Serve no more. See :class:`hexkv.ports.ServedAdministration`."""
        self._stopping = True
        self._listener.wake()
        until = Deadline.after(self._clock, _PARTING)
        self._join(self._thread, until)
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.stream.abort()
        for client in clients:
            self._join(client.thread, until)

    def _join(self, thread: Thread | None, until: Deadline) -> None:
        if thread is not None and thread is not current_thread():
            with suppress(RuntimeError):  # it has not begun
                thread.join(max(0.0, until.remaining()))

    def _run(self) -> None:
        with self._listener:
            while not self._stopping:
                try:
                    sock = self._listener.accept()
                except OSError as error:
                    log.warning("admin: no connection can be accepted: %s", error)
                    time.sleep(0.1)  # out of file descriptors, perhaps
                    continue
                if sock is not None:
                    self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                # Without the handshake: nobody waits here for one client.
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            caller = self._caller(sock)
            client = _Client(Stream(sock, str(caller)))
        except (OSError, Refused) as error:
            log.warning("admin: a client is turned away: %s", error)
            sock.close()
            return
        with self._lock:
            room = not self._stopping and self._make_room()
            if room:
                self._clients[client] = None
        client.thread = Thread(
            target=self._attend, args=(client, caller), name="hexkv admin client", daemon=True
        )
        try:
            if room:
                client.thread.start()
                return
            log.warning("admin: %s is turned away: there are %d clients", caller, self._most)
        except RuntimeError as error:  # the system gives no more threads
            log.warning("admin: %s is turned away: %s", caller, error)
        self._leave(client)

    def _caller(self, sock: socket.socket) -> Caller:
        """Who connects.

        Raises:
            Refused: it is nobody who may.
        """
        if sock.family != socket.AF_UNIX:
            return Caller(f"{sock.getpeername()[0]}:{sock.getpeername()[1]}")
        pid, uid, gid = peer_of(sock)
        if not self._allowed.lets_in(uid, gid):
            raise Refused(f"process {pid} is user {uid} of group {gid}")
        return Caller(f"pid {pid} uid {uid}")

    def _make_room(self) -> bool:
        """End the connection that has said nothing for longest, if there are too many."""
        if len(self._clients) < self._most:
            return True
        for client in self._clients:
            if not client.known:
                del self._clients[client]
                client.stream.abort()
                return True
        return False

    def _attend(self, client: _Client, caller: Caller) -> None:
        stream = client.stream
        try:
            opening = Deadline.after(self._clock, _OPENING)
            stream.secure(opening)
            answer(stream, self._secret, opening)
            client.known = True
            session = AdminSession(stream, caller, self._clock, self._verbs)
            session.run(self._administration, opening)
        except (BadMessage, Refused) as error:
            log.warning("admin: %s is turned away: %s", caller, error)
        except (OutOfTime, ConnectionBroken, OSError) as error:
            log.info("admin: %s is gone: %s", caller, error)
        except Exception:
            log.exception("admin: the connection of %s ends", caller)
        finally:
            self._leave(client)

    def _leave(self, client: _Client) -> None:
        with self._lock:
            self._clients.pop(client, None)
        client.stream.close()
