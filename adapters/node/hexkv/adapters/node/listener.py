"""Where a node listens: a socket at a path, and a lock that says who serves it."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hexkv.ports import ConfigError

_LOOK_UP_MS = 1000
"""Of waiting for a client, after which a node looks whether it is to end."""


class Listener:
    """A Unix socket that others connect to. One process serves a path at a time.

    A lock on a file beside it says who. What a killed node left there is taken over.
    """

    def __init__(
        self, path: Path, mode: int = 0o600, inherited: tuple[int, int] | None = None
    ) -> None:
        """Listen at *path*, which gets *mode* before anybody can see it.

        Args:
            path: at which clients connect.
            mode: of the socket's file.
            inherited: descriptors of the lock and of the socket of the process that listened there
                before; from now on the listener's.

        Raises:
            ConfigError: another node serves it, or it cannot be made.
        """
        self.path = path
        self._lock = -1
        if inherited is None:
            self._listen(path, mode)
        else:
            self._lock, descriptor = inherited
            self._socket = socket.socket(fileno=descriptor)
            with suppress(OSError):
                path.chmod(mode)
            self._socket.listen(128)  # so that who asks is told of this process, not of the former
        self._woken, self._wake = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def _listen(self, path: Path, mode: int) -> None:
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

    def accept(self) -> socket.socket | None:
        """The next client; ``None`` if :meth:`wake`, or nobody for a while, came instead."""
        # A signal that comes just before poll() begins wakes nobody: Python sees to it after.
        found = [number for number, _ in self._poll.poll(_LOOK_UP_MS)]
        if not found or self._woken.fileno() in found:
            if found:
                self._woken.recv(64)
            return None
        sock, _ = self._socket.accept()
        return sock

    @property
    def descriptors(self) -> tuple[int, int]:
        """Of the lock and of the socket."""
        return self._lock, self._socket.fileno()

    def wake(self) -> None:
        """Have :meth:`accept` end, from any thread or signal handler."""
        with suppress(OSError):
            self._wake.send(b".")

    def close(self) -> None:
        """Listen no more. Calling it twice is allowed."""
        if self._lock >= 0:
            with suppress(OSError):
                self.path.unlink()
            self.leave()

    def leave(self) -> None:
        """Let go of the socket and of the lock, which another process has. Twice is allowed."""
        if self._lock < 0:
            return
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
