"""Waiting for who connects to a listening socket, of whatever family, until somebody says stop."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from threading import RLock
from typing import Protocol

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted. One beyond is tried again by its
client, a second later at first; the kernel may have a lower limit (``net.core.somaxconn``)."""

_LOOK_UP_MS = 1000
"""Of waiting for somebody to connect, after which a server looks whether it is to end."""


class Accepting(Protocol):
    """What a server accepts connections from. :meth:`accept` is for one thread."""

    @property
    def host(self) -> str:
        """The numeric address of a TCP port."""
        ...

    @property
    def port(self) -> int:
        """The TCP port."""
        ...

    def accept(self) -> socket.socket | None:
        """Return the next client; ``None`` if :meth:`wake`, or none for a while, came instead.

        Raises:
            OSError: none can be accepted at present.
        """
        ...

    def wake(self) -> None:
        """Have :meth:`accept` end, from any thread or signal handler."""
        ...

    def close(self) -> None:
        """Listen no more. Calling it twice is allowed; not while another thread is in accept."""
        ...


class Acceptor:
    """Accepts what connects to *sock*, from now on its own. :meth:`accept` is for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        # Shutting a listening Unix socket down wakes nobody who waits for it with a time-out.
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._lock = RLock()  # of the descriptors; a signal handler may come amid any of this
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    @property
    def host(self) -> str:
        """The numeric address of a TCP port."""
        return str(self.socket.getsockname()[0])

    @property
    def port(self) -> int:
        """The TCP port, also where any free one was asked for."""
        return int(self.socket.getsockname()[1])

    def accept(self) -> socket.socket | None:
        """The next client; ``None`` if :meth:`wake`, or nobody for a while, came instead.

        Raises:
            OSError: none can be accepted at present.
        """
        # A signal that comes just before poll() begins wakes nobody: Python sees to it after.
        found = [number for number, _ in self._poll.poll(_LOOK_UP_MS)]
        if self._woken in found:
            os.read(self._woken, 64)
            return None
        if not found:
            return None
        sock, _ = self.socket.accept()
        sock.setblocking(True)
        return sock

    def wake(self) -> None:
        """Have :meth:`accept` end, from any thread or signal handler."""
        with self._lock, suppress(OSError):  # it is full, or nobody accepts any more
            os.write(self._wake, b".")

    def close(self) -> None:
        """Listen no more. Calling it twice is allowed; not while another thread is in accept."""
        self.socket.close()
        with self._lock:
            pipe, self._wake = self._wake, -1
            if pipe >= 0:
                os.close(pipe)
                os.close(self._woken)
