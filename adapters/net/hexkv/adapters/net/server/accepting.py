"""Waiting for clients of a listening socket, of any family, until it is woken."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from threading import RLock
from typing import Protocol

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted. The client of a further one retries,
a second later at first; the kernel may have a lower limit (``net.core.somaxconn``)."""

_LOOK_UP_MS = 1000
"""Milliseconds of waiting for a client, after which a server checks if it is to end."""


class Accepting(Protocol):
    """A source of connections for a server. :meth:`accept` is for one thread."""

    @property
    def host(self) -> str:
        """The numeric address of a TCP port."""
        ...

    @property
    def port(self) -> int:
        """The TCP port."""
        ...

    def accept(self) -> socket.socket | None:
        """Return the next client; ``None`` after :meth:`wake`, or when none came for a while.

        Raises:
            OSError: none can be accepted at present.
        """
        ...

    def wake(self) -> None:
        """Have :meth:`accept` end, from any thread or signal handler."""
        ...

    def close(self) -> None:
        """Stop listening. Calling it twice is allowed; not while another thread is in accept."""
        ...


class Acceptor:
    """Accepts the clients of *sock*, which it owns. :meth:`accept` is for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        # Shutting down a listening Unix socket does not wake a thread that waits with a time-out.
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
        """The TCP port, also if any free one was requested."""
        return int(self.socket.getsockname()[1])

    def accept(self) -> socket.socket | None:
        """Return the next client; ``None`` after :meth:`wake`, or if none came for a while.

        Raises:
            OSError: none can be accepted at present.
        """
        # A signal just before poll() begins does not wake it: Python handles it afterwards.
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
        with self._lock, suppress(OSError):  # the pipe is full, or already closed
            os.write(self._wake, b".")

    def close(self) -> None:
        """Stop listening. Calling it twice is allowed; not while another thread is in accept."""
        self.socket.close()
        with self._lock:
            pipe, self._wake = self._wake, -1
            if pipe >= 0:
                os.close(pipe)
                os.close(self._woken)
