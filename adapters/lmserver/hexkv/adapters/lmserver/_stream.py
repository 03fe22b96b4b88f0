"""A connection that receives into memory, sends from memory, and keeps deadlines.

A plain socket stays blocking and has the kernel's own time-outs (``SO_RCVTIMEO``): so one
system call receives a whole value (``MSG_WAITALL``), and a hundred hand-overs of the GIL are
saved. TLS uses Python's time-outs, which hold across the many reads of one record.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from struct import pack

from hexkv.ports import Deadline

_VIEWS = 512
"""Buffers that one system call takes, safely below IOV_MAX."""


_LONGEST = 86_400.0
"""Seconds: what every kernel takes for a time-out."""


class Stream:
    """One connection. Used by one thread at a time; :meth:`abort` may come from any."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        if not self._tls:
            sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def secure(self, deadline: Deadline) -> None:
        """Make the handshake of a TLS connection, if it is one. Raises as :meth:`receive`."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(max(deadline.remaining(), 0.001))  # 0 would not wait at all
            self._socket.do_handshake()

    def receive(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Fill every view.

        Raises:
            TimeoutError: the deadline passed.
            ConnectionError: the other end has no more to say.
            OSError: anything else.
        """
        rest = _Rest(views)
        while rest.views:
            self._arm(deadline, socket.SO_RCVTIMEO)
            try:
                if self._tls:
                    got = self._socket.recv_into(rest.views[0])
                elif len(rest.views) == 1:
                    got = self._socket.recv_into(rest.views[0], 0, socket.MSG_WAITALL)
                else:
                    got = self._socket.recvmsg_into(rest.views[:_VIEWS], 0, socket.MSG_WAITALL)[0]
            except BlockingIOError:
                raise TimeoutError("nothing arrived in time") from None
            if not got:
                raise ConnectionResetError("the other end closed the connection")
            rest.advance(got)

    def receive_bytes(self, size: int, deadline: Deadline) -> bytes:
        """The next *size* bytes, which must be few. Raises as :meth:`receive`."""
        data = bytearray(size)
        self.receive([memoryview(data)], deadline)
        return bytes(data)

    def receive_start(self, size: int, idle: Deadline, patience: float) -> bytes:
        """The next *size* bytes: some of them until *idle*, the rest *patience* seconds later.

        Raises:
            TimeoutError, ConnectionError, OSError: as :meth:`receive`.
        """
        data = memoryview(bytearray(size))
        self._arm(idle, socket.SO_RCVTIMEO)
        try:
            got = self._socket.recv_into(data)
        except BlockingIOError:
            raise TimeoutError("nothing arrived in time") from None
        if not got:
            raise ConnectionResetError("the other end closed the connection")
        if got < size:
            self.receive([data[got:]], Deadline.after(idle.clock, patience))
        return bytes(data)

    def send(self, views: Sequence[memoryview | bytes], deadline: Deadline) -> None:
        """Send all of it, or raise as :meth:`receive`."""
        rest = _Rest([memoryview(view) for view in views])
        while rest.views:
            self._arm(deadline, socket.SO_SNDTIMEO)
            try:
                if self._tls:
                    sent = self._socket.send(rest.views[0])
                else:
                    sent = self._socket.sendmsg(rest.views[:_VIEWS])
            except BlockingIOError:
                raise TimeoutError("nothing was taken in time") from None
            rest.advance(sent)

    @property
    def stale(self) -> bool:
        """Whether an idle connection is over, or has something to say that nobody asked for."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Let whatever is under way fail now."""
        with suppress(OSError):  # it may be over already
            # Not the method of a TLS socket: that one takes the session from under a reader.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _arm(self, deadline: Deadline, option: int) -> None:
        """Have the next system call end when *deadline* has passed."""
        remaining = min(deadline.remaining(), _LONGEST)
        if not remaining:
            raise TimeoutError("the deadline has passed")
        if self._tls:
            self._socket.settimeout(remaining)
            return
        # A time-out of zero would mean none at all.
        micros = max(1, int(remaining * 1e6))
        seconds, micros = divmod(micros, 1_000_000)
        self._socket.setsockopt(socket.SOL_SOCKET, option, pack("@ll", seconds, micros))


class _Rest:
    """What is left of some views to fill or to send."""

    __slots__ = ("views",)

    def __init__(self, views: Sequence[memoryview]) -> None:
        self.views = [view for view in views if view.nbytes]

    def advance(self, done: int) -> None:
        """Pass over the next *done* bytes."""
        passed = 0
        while passed < len(self.views) and done >= self.views[passed].nbytes:
            done -= self.views[passed].nbytes
            passed += 1
        del self.views[:passed]
        if done:
            self.views[0] = self.views[0][done:]
