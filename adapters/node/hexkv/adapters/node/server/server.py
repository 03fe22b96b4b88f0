"""The node: accepts clients over a Unix socket, and passes each the descriptor of its pool."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from math import inf
from threading import Condition, Lock

from hexkv.adapters.net.errors import Refused
from hexkv.adapters.net.rpc.barrier import Barrier
from hexkv.adapters.net.rpc.session import Session
from hexkv.adapters.net.server.admission import Admission, TurnedAway
from hexkv.adapters.net.server.client_check import OWN, Allowed
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.net.unix import peer_of
from hexkv.adapters.node.memory import SharedRegion
from hexkv.adapters.node.server.giving import Giving
from hexkv.adapters.node.server.handover import (
    END,
    GREETING,
    HANDOVER,
    HANDOVER_VERSION,
    HELLO,
    TAKE,
    receive,
)
from hexkv.adapters.node.server.limits import ClientLimits
from hexkv.adapters.node.server.session import NodeSession
from hexkv.adapters.node.server.taking import Inherited
from hexkv.adapters.node.wire import HANDSHAKE, MAX_BODY, VERSION
from hexkv.peers.serving.served import ServedChunks
from hexkv.ports import FRAME_VERSION, Clock, ConfigError, Deadline

log = logging.getLogger(__name__)

_DECIDING = 60.0
"""Seconds that a successor has to decide, during which it maps the pool."""

_WRITING = 30.0
"""Seconds for queued writes to end, before clients have to wait."""


class NodeServer:
    """Serves a keyed cache whose pool is shared memory."""

    def __init__(
        self,
        served: ServedChunks,
        listener: Listener,
        clock: Clock,
        limits: ClientLimits,
        *,
        allowed: Allowed = OWN,
        clients: int = 64,
        parting: float = 5.0,
        inherited: Inherited | None = None,
    ) -> None:
        """Serve *served*; :meth:`run` does it.

        Args:
            served: closed by its creator, after :meth:`run`.
            listener: from now on the server's.
            clock: for deadlines.
            limits: of each client.
            allowed: the processes that may connect.
            clients: the number allowed at a time, and of connections that have not sent the
                greeting.
            parting: seconds that clients have to release their leases, when this ends.
            inherited: the state that the previous node handed over, and *served* has adopted.

        Raises:
            ConfigError: the pool's memory cannot be shared.
        """
        region = served.region
        if not isinstance(region, SharedRegion):
            raise ConfigError("a node's pool is shared memory: pool.provider must be shared")
        self.generation = secrets.randbits(64) if inherited is None else inherited.state.generation
        self._region = region
        self._served = served
        served.take_back(self._expire, self._first_end)
        self._listener = listener
        self._clock = clock
        self._limits = limits
        self._allowed = allowed
        self._most = clients
        self._parting = parting
        self._numbers = count(1 if inherited is None else inherited.state.numbers)
        self._sessions: set[NodeSession] = set()
        self._changed = Condition(Lock())
        """Guards the set of sessions."""
        self._stopping = False  # a bool, because a signal handler must not wait for a lock
        self._admission = Admission(
            self._attend,
            clock,
            Limits(GREETING.size, patience=limits.patience),
            connections=clients,
            name="hexkv node",
        )
        """Holds connections before the greeting."""

        self._barrier = Barrier()
        self._inherited = inherited
        self._successor: socket.socket | None = None
        """The connection to the process that takes over."""

        self._last: socket.socket | None = None
        """The connection to a process that waits for this one's end, which closes it."""

        self.given = False
        """True once another process has taken this one's place."""

    @property
    def clients(self) -> int:
        """The number of connections."""
        return len(self._sessions)

    @property
    def turned_away(self) -> Counter[TurnedAway]:
        """The number of connections turned away, by reason."""
        return self._admission.turned_away

    @property
    def leased_bytes(self) -> int:
        """The bytes that clients have leased."""
        with self._changed:
            return sum(session.granted.leased_bytes for session in self._sessions)

    def run(self) -> None:
        """Serve until :meth:`stop`; when this returns no connection is left."""
        if self._inherited is not None:
            self._go_on_with(self._inherited)
        try:
            while not (self._stopping or self.given):
                if self._successor is not None:
                    self._give(self._successor)
                    continue
                self._expire()  # at least once a second, the period at which accept() returns
                try:
                    sock = self._listener.accept()
                except OSError as error:
                    if not self._stopping:
                        log.warning("node: no connection can be accepted: %s", error)
                        time.sleep(0.1)  # out of file descriptors, perhaps
                    continue
                if sock is not None:
                    self._admission.admit(sock)
        finally:
            self._admission.end(self._parting)
            if self.given:
                self._listener.leave()
            else:
                self._listener.close()
                self._part()
                self._barrier.close()

    def stop(self) -> None:
        """Make :meth:`run` end. From any thread, or from a signal handler."""
        self._stopping = True
        self._listener.wake()

    def close(self) -> None:
        """Signal that this process no longer touches the memory, as its end does."""
        if self._last is not None:
            self._last.close()
            self._last = None

    def _expire(self) -> bool:
        """Take back leases past their time limit, also of sleeping clients. True if any were."""
        expired = [session.granted.expire() for session in self._all()]
        return any(expired)

    def _first_end(self) -> float:
        return min((session.granted.first_end for session in self._all()), default=inf)

    def _all(self) -> list[NodeSession]:
        with self._changed:
            return list(self._sessions)

    def _attend(self, connection: Connection) -> None:
        """Serve a new connection.

        Raises:
            Refused: it may not use this node, or cannot.
            OutOfTime, ConnectionBroken, OSError: it has ended, or sends no greeting.
        """
        pid, uid, gid = connection.stream.process
        if not self._allowed.lets_in(uid, gid):
            raise Refused(f"process {pid} is user {uid} of group {gid}")
        magic, *versions, _ = GREETING.unpack(connection.begin(GREETING.size))
        if magic not in (HANDSHAKE.magic, HANDOVER):
            raise Refused(f"process {pid} speaks another protocol")
        sock = self._admission.release(connection)
        try:
            if magic == HANDOVER:
                self._meet(sock, uid)
                return
            session = self._let_in(sock, pid, uid, tuple(versions))
        except BaseException:
            sock.close()
            raise
        session.run()

    def _ended(self, session: Session) -> None:
        assert isinstance(session, NodeSession)  # noqa: S101
        with self._changed:
            if session.state not in ("parked", "dismissed"):
                self._sessions.discard(session)
            self._changed.notify_all()
        if self.given:
            session.leave()

    def _meet(self, sock: socket.socket, uid: int) -> None:
        """Negotiate with a process that wants to take this one's place.

        Raises:
            Refused: it may not, or changes its mind.
            OSError: it has ended.
        """
        if uid not in (0, os.geteuid()):
            raise Refused(f"user {uid} cannot take over a node of user {os.geteuid()}")
        size = len(self._region.buffer)
        hello = HELLO.pack(HANDOVER, HANDOVER_VERSION, FRAME_VERSION, VERSION, size)
        socket.send_fds(sock, [hello], [self._region.descriptor])
        sock.settimeout(_DECIDING)
        wanted = receive(sock, 1)
        if wanted == END:
            log.warning("node: another process takes this one's place, and can use nothing of it")
            self._last = sock
            self.stop()
            return
        if wanted != TAKE:
            raise Refused("it wants to take over, and sends something else")
        # Clients are still answered here, so that little is left to write once they are not.
        self._served.chunks.flush(Deadline.after(self._clock, _WRITING))
        with self._changed:
            if self._successor is not None or self._stopping:
                raise Refused("another one takes over, or the node ends")
            self._successor = sock
        self._listener.wake()

    def _give(self, sock: socket.socket) -> None:
        """Hand over, in the thread that accepts clients: it accepts no new ones during it."""
        self.given = Giving(self._served, self._barrier, self._clock).run(
            sock,
            self._all,
            self._waits,
            (self.generation, next(self._numbers)),
            self._listener.descriptors,
        )
        self._successor = None
        if self.given:
            self._last = sock
        else:
            sock.close()
        for session in self._all():  # also of clients that were let in during it
            if self.given:
                session.leave()
            else:
                session.resume()

    def _waits(self, ready: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(ready, seconds)

    def _go_on_with(self, inherited: Inherited) -> None:
        """Answer the clients of the previous process."""
        for one, sock, leases in inherited.connections:
            _, uid, gid = peer_of(sock)
            session = self._session(sock, one.name, uid)
            session.restore(one, leases)
            with self._changed:
                self._sessions.add(session)
            if not self._allowed.lets_in(uid, gid):
                session.dismiss("it may no longer use this node")
            session.resume()

    def _session(self, sock: socket.socket, name: str, uid: int) -> NodeSession:
        """Return the session of a client that runs as user *uid*."""
        session = NodeSession(
            sock,
            name,
            self._served,
            self.generation,
            self._limits,
            self._clock,
            self._ended,
            self._barrier,
        )
        session.trusted = uid in (0, os.geteuid())
        return session

    def _let_in(
        self, sock: socket.socket, pid: int, uid: int, versions: tuple[int, ...]
    ) -> NodeSession:
        """Pass the pool to a client that has sent the greeting.

        Raises:
            Refused: there are too many clients, or it speaks another version.
            OSError: it has ended.
        """
        limits, name = self._limits, f"{pid}-{next(self._numbers)}"
        session = self._session(sock, name, uid)
        why = ""
        if versions != (VERSION, FRAME_VERSION):
            why = "process {} speaks version {} with frames {}".format(pid, *versions)
        with self._changed:
            if not why and (self._stopping or len(self._sessions) >= self._most):
                why = f"there are {len(self._sessions)} clients already"
            if not why:
                self._sessions.add(session)
        size = 0 if why else len(self._region.buffer)
        welcome = HANDSHAKE.challenge(
            FRAME_VERSION,
            self.generation,
            size,
            limits.leased_bytes,
            size,
            limits.under_way,
            MAX_BODY,
        )
        try:
            socket.send_fds(sock, [welcome], [] if why else [self._region.descriptor])
        except BaseException:
            session.abort()  # it may be dismissed already, and is awaited until it is over
            self._ended(session)
            raise
        if why:
            raise Refused(why)
        log.info("node: client %s of user %d comes in", name, uid)
        return session

    def _part(self) -> None:
        """Dismiss all clients: they close their ends when they have released their leases."""
        sessions = self._all()
        for session in sessions:
            session.dismiss("the node ends")
        if not self._gone(self._parting):
            for session in sessions:
                session.abort()
            self._gone(self._limits.patience)

    def _gone(self, seconds: float) -> bool:
        """Wait until no client is left. False after *seconds*."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sessions, seconds)
