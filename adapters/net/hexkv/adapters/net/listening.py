"""Listening: at a TCP port, or at the path of a Unix socket that one process serves at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server import listen
from hexkv.ports import ConfigError

_LOOK_UP_MS = 1000
"""Of waiting for somebody to connect, after which a server looks whether it is to end."""

_PEER = struct.Struct("3i")


class Peer(NamedTuple):
    """A process at the other end of a Unix socket, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """Who was at the other end of a Unix socket when it was connected."""
    return Peer(*_PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)))


class Listener:
    """A socket that others connect to. :meth:`accept` is for one thread."""

    def __init__(self, address: Address, mode: int = 0o600) -> None:
        """Listen at *address*; the socket of a path gets *mode* before anybody can see it.

        A lock on a file beside a path says who serves it. What a killed process left there is
        taken over.

        Raises:
            ConfigError: another process serves it, or it cannot be made.
        """
        self.address = address
        self._path = Path(address.path) if address.path else None
        self._lock = -1
        self._open = True
        if self._path is None:
            self._socket = listen(address.host, address.port)
        else:
            self._socket = self._bind(self._path, mode)
        self._socket.setblocking(False)
        self._woken, self._wake = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    @property
    def host(self) -> str:
        """The numeric address of a TCP port."""
        return str(self._socket.getsockname()[0])

    @property
    def port(self) -> int:
        """The TCP port, also where any free one was asked for."""
        return int(self._socket.getsockname()[1])

    def accept(self) -> socket.socket | None:
        """The next client; ``None`` if :meth:`wake`, or nobody for a while, came instead.

        Raises:
            OSError: none can be accepted at present.
        """
        found = [number for number, _ in self._poll.poll(_LOOK_UP_MS)]
        if not found or self._woken.fileno() in found:
            return None
        sock, _ = self._socket.accept()
        sock.setblocking(True)
        return sock

    def wake(self) -> None:
        """Have :meth:`accept` end, from any thread or signal handler."""
        with suppress(OSError):
            self._wake.send(b".")

    def close(self) -> None:
        """Listen no more. Calling it twice is allowed; not while another thread is in accept."""
        if not self._open:
            return
        self._open = False
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        for sock in (self._socket, self._woken, self._wake):
            sock.close()
        if self._lock >= 0:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _bind(self, path: Path, mode: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_socket():
                path.unlink()
            os.fchmod(sock.fileno(), mode)
            sock.bind(str(path))
            path.chmod(mode)  # the umask took its part: what was asked for is what counts
            sock.listen(128)
        except OSError as error:
            sock.close()
            if self._lock >= 0:
                os.close(self._lock)
            taken = error.errno in (errno.EWOULDBLOCK, errno.EADDRINUSE)
            why = "another process serves it" if taken else error.strerror or str(error)
            raise ConfigError(f"cannot listen at {path}: {why}") from error
        return sock
