"""The node: lets clients in over a Unix socket, and passes each the descriptor of its pool."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Condition, Lock, Thread
from types import TracebackType
from typing import Self

from hexkv.adapters.node.memory import SharedRegion
from hexkv.adapters.node.session import Limits, Session, take_no_longer
from hexkv.adapters.node.wire import GREETING, MAGIC, MAX_BODY, VERSION, WELCOME
from hexkv.plugins.served import ServedChunks
from hexkv.ports import FRAME_VERSION, Clock, ConfigError

log = logging.getLogger("hexkv")

_LOOK_UP_MS = 1000
"""Of waiting for a client, after which a node looks whether it is to end."""

_PEER = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which processes may connect, beside those of the node's own user."""

    uids: Collection[int] = field(default_factory=frozenset)
    gids: Collection[int] = field(default_factory=frozenset)
    """Of processes whose primary group it is."""

    def lets_in(self, uid: int, gid: int) -> bool:
        """True if a process of this user and group may use the node."""
        return uid == os.geteuid() or uid in self.uids or gid in self.gids


class NodeServer:
    """Serves a keyed cache whose pool is shared memory."""

    def __init__(
        self,
        served: ServedChunks,
        listener: Listener,
        clock: Clock,
        limits: Limits,
        *,
        allowed: Allowed = Allowed(),
        clients: int = 64,
        parting: float = 5.0,
    ) -> None:
        """Serve *served*; :meth:`run` does it.

        Args:
            served: closed by whoever made it, after :meth:`run`.
            listener: from now on the server's.
            clock: for deadlines.
            limits: of each client.
            allowed: who may connect.
            clients: how many there may be at a time.
            parting: seconds that they have to let go of what they lease, when this ends.

        Raises:
            ConfigError: the pool's memory cannot be shared.
        """
        region = served.region
        if not isinstance(region, SharedRegion):
            raise ConfigError("a node's pool is shared memory: pool.provider must be shared")
        self.generation = secrets.randbits(64)
        self._region = region
        self._served = served
        self._listener = listener
        self._clock = clock
        self._limits = limits
        self._allowed = allowed
        self._most = clients
        self._parting = parting
        self._numbers = count(1)
        self._sessions: set[Session] = set()
        self._changed = Condition(Lock())
        """Of who is connected."""
        self._stopping = False  # a bool, for a signal handler must not wait for a lock

    @property
    def clients(self) -> int:
        """How many connections there are."""
        return len(self._sessions)

    @property
    def leased_bytes(self) -> int:
        """Bytes that clients have leased."""
        with self._changed:
            return sum(session.granted.leased_bytes for session in self._sessions)

    def run(self) -> None:
        """Serve until :meth:`stop`; when this returns no connection is left."""
        try:
            while not self._stopping:
                try:
                    sock = self._listener.accept()
                except OSError as error:
                    if not self._stopping:
                        log.warning("node: no connection can be accepted: %s", error)
                        time.sleep(0.1)  # out of file descriptors, perhaps
                    continue
                if sock is not None:
                    Thread(
                        target=self._attend, args=(sock,), name="hexkv node", daemon=True
                    ).start()
        finally:
            self._listener.close()
            self._part()

    def stop(self) -> None:
        """Have :meth:`run` end. From any thread, or from a signal handler."""
        self._stopping = True
        self._listener.wake()

    def _attend(self, sock: socket.socket) -> None:
        try:
            session = self._let_in(sock)
        except (OSError, _Refused, struct.error) as error:
            log.warning("node: a client is turned away: %s", error)
            sock.close()
            return
        session.run()

    def _ended(self, session: Session) -> None:
        with self._changed:
            self._sessions.discard(session)
            self._changed.notify_all()

    def _let_in(self, sock: socket.socket) -> Session:
        """Greet a client, and pass it the pool.

        Raises:
            _Refused: it may not use this node, or cannot.
            OSError: it is gone.
        """
        pid, uid, gid = _PEER.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        )
        if not self._allowed.lets_in(uid, gid):
            raise _Refused(f"process {pid} is user {uid} of group {gid}")
        sock.settimeout(self._limits.patience)
        said = b""
        while len(said) < GREETING.size:
            part = sock.recv(GREETING.size - len(said))
            if not part:
                raise _Refused("it says nothing")
            said += part
        magic, version, frames, _ = GREETING.unpack(said)
        limits, name = self._limits, f"{pid}-{next(self._numbers)}"
        session = Session(
            sock, name, self._served, self.generation, limits, self._clock, self._ended
        )
        why = ""
        if magic != MAGIC:
            raise _Refused("it speaks another protocol")
        if (version, frames) != (VERSION, FRAME_VERSION):
            why = f"it speaks version {version} with frames {frames}"
        with self._changed:
            if not why and (self._stopping or len(self._sessions) >= self._most):
                why = f"there are {len(self._sessions)} already"
            if not why:
                self._sessions.add(session)
        size = 0 if why else len(self._region.buffer)
        welcome = WELCOME.pack(
            MAGIC,
            VERSION,
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
            sock.settimeout(None)
            take_no_longer(sock, limits.patience)
        except BaseException:
            self._ended(session)
            raise
        if why:
            raise _Refused(why)
        log.info("node: client %s of user %d comes in", name, uid)
        return session

    def _part(self) -> None:
        """Say good-bye: clients close their ends when they have let go of what they lease."""
        with self._changed:
            sessions = list(self._sessions)
        for session in sessions:
            session.dismiss("the node ends")
        if not self._gone(self._parting):
            for session in sessions:
                session.abort()
            self._gone(self._limits.patience)

    def _gone(self, seconds: float) -> bool:
        """Wait until no client is left. False if *seconds* were over first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sessions, seconds)


class _Refused(Exception):
    """A client is not let in."""


class Listener:
    """A Unix socket that others connect to. One process serves a path at a time.

    A lock on a file beside it says who. What a killed node left there is taken over.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        """Listen at *path*, which gets *mode* before anybody can see it.

        Raises:
            ConfigError: another node serves it, or it cannot be made.
        """
        self.path = path
        self._lock = -1
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_socket():
                path.unlink()
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            os.fchmod(self._socket.fileno(), mode)
            self._socket.bind(str(path))
            # The umask took its part: what was asked for is what counts.
            path.chmod(mode)
            self._socket.listen(128)
            self._socket.setblocking(False)
        except OSError as error:
            if self._lock >= 0:
                os.close(self._lock)
            taken = error.errno in (errno.EWOULDBLOCK, errno.EADDRINUSE)
            why = "another node serves it" if taken else error.strerror or str(error)
            raise ConfigError(f"cannot listen at {path}: {why}") from error
        self._woken, self._wake = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def accept(self) -> socket.socket | None:
        """The next client; ``None`` if :meth:`wake`, or nobody for a while, came instead."""
        # A signal that comes just before poll() begins wakes nobody: Python sees to it after.
        found = [number for number, _ in self._poll.poll(_LOOK_UP_MS)]
        if not found or self._woken.fileno() in found:
            return None
        sock, _ = self._socket.accept()
        return sock

    def wake(self) -> None:
        """Have :meth:`accept` end, from any thread or signal handler."""
        with suppress(OSError):
            self._wake.send(b".")

    def close(self) -> None:
        """Listen no more. Calling it twice is allowed."""
        if self._lock < 0:
            return
        with suppress(OSError):
            self.path.unlink()
        for sock in (self._socket, self._woken, self._wake):
            sock.close()
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
