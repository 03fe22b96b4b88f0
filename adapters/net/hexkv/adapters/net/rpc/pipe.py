"""A connection on which one thread receives while another sends."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
"""For :attr:`Pipe.receive` and :attr:`Pipe.send`, which never wait."""


class Pipe:
    """Takes over a connected socket."""

    receive: Callable[[int, int], bytes]
    """Returns bytes that have come, a number at most; none once the other end has closed. To be
    called with :data:`NOW`.

    Raises:
        BlockingIOError: none have come.
        OSError: the connection is broken.
    """

    send: Callable[[memoryview | bytes, int], int]
    """Sends the first bytes and returns their number; to be called with :data:`NOW`.

    Raises:
        BlockingIOError: the other end has to receive first.
        OSError: the connection is broken.
    """

    await_bytes: Callable[[float | None], object]
    """Waits until bytes, or the end, have come. False after these milliseconds; ``None``: never."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._read = select.poll()
        self._read.register(sock, select.POLLIN)
        self.encrypted = isinstance(sock, ssl.SSLSocket)
        """True if a :attr:`send` that raises ``BlockingIOError`` may have made the first bytes a
        record, which goes before all others: it is repeated with the same bytes."""

        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(0.0)
            tls = _Tls(sock, self._read)
            self.receive, self.send, self.await_bytes = tls.receive, tls.send, tls.await_bytes
        else:  # blocking: the flag of its file may be of other processes, too
            sock.settimeout(None)
            # No method of ours in between: each takes a hundredth of a small request.
            self.receive, self.send, self.await_bytes = sock.recv, sock.send, self._read.poll

    def fileno(self) -> int:
        """Return the socket's descriptor; negative once it is closed."""
        return self._socket.fileno()

    def watch(self, descriptor: int) -> None:
        """Have :attr:`await_bytes` end once *descriptor* is readable, too."""
        self._read.register(descriptor, select.POLLIN)

    def await_room(self, seconds: float) -> bool:
        """Wait until bytes can be sent. False after *seconds*."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def await_end(self, seconds: float) -> bool:
        """Wait until the other end has closed, whatever it has sent. False after *seconds*."""
        poll = select.poll()
        poll.register(self._socket, select.POLLHUP)
        return bool(poll.poll(seconds * 1000))

    def shut(self, how: int) -> None:
        """Shut down one or both directions, from any thread. The socket stays open."""
        with suppress(OSError):  # it may be over already
            # Not the method of a TLS socket, which drops the session that a reader is using.
            socket.socket.shutdown(self._socket, how)

    def close(self) -> None:
        """Close the socket. Calling it twice is allowed."""
        with suppress(OSError):
            self._socket.close()


class _Tls:
    """A connection with TLS, whose state is for one thread at a time."""

    def __init__(self, sock: ssl.SSLSocket, read: select.poll) -> None:
        self._socket = sock
        self._read = read
        self._lock = Lock()

    def receive(self, most: int, flags: int) -> bytes:
        del flags
        try:
            with self._lock:
                return self._socket.recv(most)
        except ssl.SSLEOFError:
            return b""
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def send(self, data: memoryview | bytes, flags: int) -> int:
        del flags
        try:
            with self._lock:
                return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def await_bytes(self, milliseconds: float | None) -> object:
        return self._socket.pending() or self._read.poll(milliseconds)
