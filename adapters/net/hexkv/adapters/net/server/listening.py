"""Listening: at a TCP port, or at the path of a Unix socket that one process serves at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from stat import S_ISSOCK
from typing import Self

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.accepting import BACKLOG, Acceptor
from hexkv.adapters.net.server.server import listen
from hexkv.ports import ConfigError


class Listener:
    """A listening socket. :meth:`accept` is for one thread."""

    def __init__(
        self, address: Address, mode: int = 0o600, inherited: tuple[int, int] | None = None
    ) -> None:
        """Listen at *address*; the socket of a path gets *mode* before others can see it.

        A lock on a file beside a path marks its server. The files of a killed process are taken
        over.

        Args:
            address: a TCP port, or the path of a Unix socket.
            mode: of the socket's file.
            inherited: descriptors of the lock and of the socket of the process that listened at the
                path before; the listener owns them from now on.

        Raises:
            ConfigError: another process serves it, or it cannot be created.
        """
        self.address = address
        self._path = Path(address.path) if address.path else None
        self._lock = -1
        self._open = True
        if self._path is None:
            sock = listen(address.host, address.port)
        elif inherited is None:
            sock, self._lock = bind(self._path, mode)
        else:
            self._lock, descriptor = inherited
            sock = socket.socket(fileno=descriptor)
            with suppress(OSError):
                self._path.chmod(mode)
            sock.listen(BACKLOG)  # so that SO_PEERCRED gives this process, not the former
        self._acceptor = Acceptor(sock)

    @property
    def host(self) -> str:
        """The numeric address of a TCP port."""
        return self._acceptor.host

    @property
    def port(self) -> int:
        """The TCP port, also if any free one was requested."""
        return self._acceptor.port

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors of the lock and of the socket."""
        return self._lock, self._acceptor.socket.fileno()

    def accept(self) -> socket.socket | None:
        """Return the next client; ``None`` after :meth:`wake`, or if none came for a while.

        Raises:
            OSError: none can be accepted at present.
        """
        return self._acceptor.accept()

    def wake(self) -> None:
        """Make :meth:`accept` return, from any thread or signal handler."""
        self._acceptor.wake()

    def close(self) -> None:
        """Stop listening. Calling it twice is allowed; not while another thread is in accept."""
        if self._open and self._path is not None:
            unbind(self._path)
        self.leave()

    def leave(self) -> None:
        """Close the socket and the lock, which another process owns now. Twice is allowed."""
        if not self._open:
            return
        self._open = False
        self._acceptor.close()
        if self._lock >= 0:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bind(path: Path, mode: int) -> tuple[socket.socket, int]:
    """Return a socket that listens at *path*, and the descriptor of the lock of its server.

    Raises:
        ConfigError: another process serves it, or it cannot be created: another file is there.
    """
    lock = -1
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while lock < 0:
            lock = _locked(_lock_of(path), os.O_CREAT)
        clear_ended(path)
        _remove_left(path)
        os.fchmod(sock.fileno(), mode)
        sock.bind(str(path))
        path.chmod(mode)  # the umask has cleared bits: the requested mode counts
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if lock >= 0:
            os.close(lock)
        taken = error.errno in (errno.EWOULDBLOCK, errno.EADDRINUSE)
        why = "another process serves it" if taken else error.strerror or str(error)
        raise ConfigError(f"cannot listen at {path}: {why}") from error
    return sock, lock


def unbind(path: Path) -> None:
    """Remove the files of a server that ends. Call this while it has the lock."""
    with suppress(OSError):
        path.unlink()
        _lock_of(path).unlink()


def _remove_left(path: Path) -> None:
    """Remove the socket of a server that was killed.

    Raises:
        OSError: another program listens there, or it is another file, or of another user.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "a file is there that is no socket")
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"a socket of user {found.st_uid} is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)  # a listener whose queue is full is one, too
        refused = client.connect_ex(str(path)) == errno.ECONNREFUSED
    if not refused:
        raise OSError(errno.EADDRINUSE, "it is in use")
    path.unlink()


def clear_ended(path: Path) -> None:
    """Remove the sockets of ended servers beside *path* that differ from it by numbers alone.

    Such as those of former processes, of whose number the path is made.
    """
    alike = re.compile(re.sub(r"\d+", r"\\d+", f"{re.escape(path.name)}[.]lock"))
    with suppress(OSError):
        for found in path.parent.iterdir():
            if alike.fullmatch(found.name) and found != _lock_of(path):
                with suppress(OSError):
                    _remove_ended(found)


def _remove_ended(lock: Path) -> None:
    descriptor = _locked(lock)
    try:
        if descriptor >= 0:
            ended = lock.with_suffix("")
            if ended.is_socket():
                ended.unlink()
            lock.unlink()
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _locked(path: Path, flags: int = 0) -> int:
    """Return the descriptor of a locked file; -1 if the file was removed before it was locked.

    Raises:
        OSError: another process has the lock, or it cannot be opened.
    """
    lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return -1
