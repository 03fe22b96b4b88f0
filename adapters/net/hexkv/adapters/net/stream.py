"""A connection that receives into memory, sends from memory, and keeps deadlines.

A plain socket stays blocking and has the kernel's time-outs (``SO_RCVTIMEO``): so one system call
receives a whole value (``MSG_WAITALL``), however slowly it comes, and saves a hundred hand-overs of
the interpreter's lock. TLS uses Python's time-outs, which hold across the many reads of one record.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import calcsize, pack, unpack_from
from typing import Any, TypeVar

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime, Untrusted, time_left
from hexkv.adapters.net.owners import owner_of
from hexkv.adapters.net.unix import Peer, peer_of, receive_descriptors
from hexkv.adapters.net.views import VIEWS, Rest, first
from hexkv.ports import Deadline

T = TypeVar("T")

_LONGEST = 86_400.0
"""Seconds that every kernel accepts as a time-out."""

_EARLY, _TOO_EARLY = 15 / 16, 3 / 4
"""Shares of the seconds left: the kernel's time-out, and how much shorter an earlier one may be.
Setting it costs 3 us, and as much as a small message when others run."""

_RECORDS = 4 << 20
"""Bytes that one call encrypts, so that the deadline is checked in between."""

_SCRATCH = 256 << 10

_COUNTS, _COUNTS_AT = "=QQ", 120
"""Linux's place of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in ``struct tcp_info``."""

_COUNTED = _COUNTS_AT + calcsize(_COUNTS)


class Stream:
    """One connection. One thread at a time uses it; :meth:`abort` is for any thread.

    Everything that waits raises ``OutOfTime`` when its deadline passes and ``ConnectionBroken``
    when the connection ends or breaks. After either the amount sent or received is unknown: such a
    stream is closed, not reused.
    """

    def __init__(self, sock: socket.socket, peer: str = "the other end") -> None:
        """Take over *sock*, which is connected; *peer* is its other end in messages."""
        self.socket = sock
        self.peer = peer
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._ahead = b""
        self._armed: dict[int, float] = {}
        """Seconds of the kernel's time-outs, by the socket's option."""

        self.received = 0
        """Bytes that have come so far."""
        if self._tls is None:
            sock.settimeout(None)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def secure(self, deadline: Deadline) -> None:
        """Make the TLS handshake, if this is a connection with TLS.

        Raises:
            Untrusted: the other end shows no valid certificate.
            OutOfTime, ConnectionBroken: as everything that waits.
        """
        if self._tls is None:
            return
        self._tls.settimeout(time_left(deadline))
        try:
            self._tls.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(f"{self.peer} is not to be believed: {error}") from error
        except OSError as error:
            raise _translated(error, self.peer) from error

    def send(self, views: Sequence[memoryview | bytes], deadline: Deadline) -> None:
        """Send all *views*, in order."""
        first = views[0] if len(views) == 1 else b""
        if isinstance(first, bytes) and 0 < len(first) <= _SCRATCH:  # a message
            sent = self._wait(socket.SO_SNDTIMEO, deadline, self.socket.send, first)
            if sent == len(first):
                return
            views = [first[sent:]]
        rest = Rest([memoryview(view) for view in views])
        while rest.views:
            rest.advance(self._gather(rest.views, deadline))

    def fill(self, into: memoryview, deadline: Deadline) -> None:
        """Receive bytes until *into* is full."""
        done = 0
        if self._ahead:
            done = min(len(self._ahead), len(into))
            into[:done] = self._ahead[:done]
            self._ahead = self._ahead[done:]
        while done < len(into):
            done += self._got(self._receive(into[done:], deadline, whole=True))

    def fill_each(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        """Receive bytes until all *views* are full, in order: in one system call if possible.

        For values, and the head of the next ones: a call for a head alone would cost its thread a
        wait, during which the value after it piles up, and each call costs the caches.
        """
        rest = Rest(views)
        while rest.views:
            if self._tls is None and not self._ahead:
                rest.advance(self._got(self._scatter(rest.views[:VIEWS], deadline)))
            else:
                first = rest.views[0]
                self.fill(first, deadline)
                rest.advance(len(first))

    def take(self, size: int, deadline: Deadline, *, ahead: int = 0) -> bytes:
        """Receive the next *size* bytes, a small number.

        At most *ahead* of the bytes that come with them are kept for the next call, as in
        :meth:`take_until`.
        """
        while ahead and len(self._ahead) < size:
            into = bytearray(size + ahead - len(self._ahead))
            got = self._got(self._receive(memoryview(into), deadline, whole=False))
            self._ahead += into[:got]
        if size <= len(self._ahead):
            found, self._ahead = self._ahead[:size], self._ahead[size:]
            return found
        data = bytearray(size)
        self.fill(memoryview(data), deadline)
        return bytes(data)

    def take_start(self, size: int, idle: Deadline, patience: float, *, ahead: int = 0) -> bytes:
        """Receive the next *size* bytes: some until *idle*, the rest *patience* seconds later.

        *ahead* as in :meth:`take`.
        """
        start = self.take_some(size + ahead, idle)
        self._got(len(start))
        if len(start) < size:
            return start + self.take(size - len(start), Deadline.after(idle.clock, patience))
        self._ahead = start[size:] + self._ahead
        return start[:size]

    def take_some(self, most: int, deadline: Deadline) -> bytes:
        """Receive the next bytes, *most* at most; none once the other end has closed."""
        if self._ahead:
            found, self._ahead = self._ahead[:most], self._ahead[most:]
            return found
        into = bytearray(most)
        got = self._receive(memoryview(into), deadline, whole=False)
        return bytes(into[:got])

    def take_until(self, end: bytes, most: int, deadline: Deadline, *, ahead: int) -> bytes | None:
        """Receive everything up to and including *end*.

        Args:
            end: the delimiter.
            most: bytes among which *end* must be.
            deadline: of all of it.
            ahead: bytes requested at a time. Bytes after *end* are kept for the next call, which
                copies them: so few, if a value follows.

        Returns:
            The bytes, or ``None`` if there are more than *most* without an end; these
            are still received.
        """
        while (place := self._ahead.find(end)) < 0:
            if len(self._ahead) > most:
                return None
            into = bytearray(ahead)
            got = self._got(self._receive(memoryview(into), deadline, whole=False))
            self._ahead += into[:got]
        place += len(end)
        found, self._ahead = self._ahead[:place], self._ahead[place:]
        return found

    @property
    def process(self) -> Peer:
        """The process at the other end of a Unix socket."""
        return peer_of(self.socket)

    @property
    def user(self) -> int | None:
        """The user of a client, over a Unix socket or loopback; ``None`` if unknown."""
        local = self.socket.family == socket.AF_UNIX
        return self.process.uid if local else owner_of(self.socket)

    def send_descriptor(self, data: bytes, descriptor: int, deadline: Deadline) -> None:
        """Send *data*, which is short, and *descriptor* along with it, over a Unix socket."""
        sent = self._wait(
            socket.SO_SNDTIMEO, deadline, socket.send_fds, self.socket, [data], [descriptor]
        )
        self.send([data[sent:]], deadline)

    def take_descriptors(self, size: int, deadline: Deadline) -> tuple[bytes, list[int]]:
        """Receive *size* bytes over a Unix socket, and the descriptors that come with them.

        The caller closes the descriptors.
        """
        said, descriptors = self._wait(
            socket.SO_RCVTIMEO, deadline, receive_descriptors, self.socket, size
        )
        try:
            self._got(len(said))
            return said + self.take(size - len(said), deadline), descriptors
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def give_back(self, data: bytes) -> None:
        """Put *data* back, to be received next."""
        self._ahead = data + self._ahead

    def skip(self, size: int, deadline: Deadline) -> None:
        """Receive and discard *size* bytes."""
        scratch = memoryview(bytearray(min(size, _SCRATCH)))
        while size > 0:
            part = scratch[:size]
            self.fill(part, deadline)
            size -= len(part)

    @property
    def ahead(self) -> int:
        """The number of bytes received and not taken."""
        return len(self._ahead)

    @property
    def drained(self) -> bool:
        """True if all received bytes were taken."""
        return not self._ahead and not (self._tls is not None and self._tls.pending())

    @property
    def quiet(self) -> bool:
        """True if an idle connection is open, and no unexpected bytes came."""
        return not self.ready(0.0)

    def ready(self, seconds: float) -> bool:
        """Wait *seconds* at most. True if bytes came, or the connection is over."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not self.drained or bool(poll.poll(seconds * 1000))

    @property
    def moved(self) -> int:
        """The bytes received, and sent and acknowledged, as the kernel counts them, so far.

        Also during a call of another thread. 0 if the kernel has no counts.
        """
        if self.socket.family == socket.AF_UNIX:
            return 0
        try:
            told = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTED)
        except OSError:  # no TCP, or over already
            return 0
        return sum(unpack_from(_COUNTS, told, _COUNTS_AT)) if len(told) == _COUNTED else 0

    def abort(self) -> None:
        """Make the calls under way fail now, from any thread. The socket stays open."""
        with suppress(OSError):  # it may be over already
            # Not the method of a TLS socket, which drops the session that a reader is using.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection. Calling it twice is allowed."""
        with suppress(OSError):
            self.socket.close()

    def detach(self) -> socket.socket:
        """Return the socket, which the caller then owns. Not with TLS, or with bytes not taken."""
        sock = socket.socket(fileno=self.socket.detach())
        sock.settimeout(None)
        for option in self._armed:
            sock.setsockopt(socket.SOL_SOCKET, option, pack("@ll", 0, 0))
        return sock

    def _gather(self, views: Sequence[memoryview], deadline: Deadline) -> int:
        if self._tls is not None:
            return self._wait(socket.SO_SNDTIMEO, deadline, self._tls.send, views[0][:_RECORDS])
        return self._wait(socket.SO_SNDTIMEO, deadline, self.socket.sendmsg, first(views))

    def _receive(self, into: memoryview, deadline: Deadline, *, whole: bool) -> int:
        """Receive some bytes, or all where the kernel can wait for all. 0 at the end."""
        if self._tls is not None:
            got = self._wait(socket.SO_RCVTIMEO, deadline, self._tls.recv_into, into)
        else:
            flags = socket.MSG_WAITALL if whole else 0
            receive = self.socket.recv_into
            got = self._wait(socket.SO_RCVTIMEO, deadline, receive, into, 0, flags)
        self.received += got
        return got

    def _scatter(self, views: Sequence[memoryview], deadline: Deadline) -> int:
        """Receive until *views* are full, if the kernel can wait for it."""
        receive = self.socket.recvmsg_into
        got = self._wait(socket.SO_RCVTIMEO, deadline, receive, views, 0, socket.MSG_WAITALL)[0]
        self.received += got
        return got

    def _got(self, count: int) -> int:
        if not count:
            raise ConnectionBroken(f"{self.peer} closed the connection")
        return count

    def _wait(self, option: int, deadline: Deadline, call: Callable[..., T], *words: Any) -> T:
        """Return the result of the system *call*, which ends when *deadline* has passed."""
        seconds = min(time_left(deadline), _LONGEST)
        try:
            if self._tls is not None:
                self._tls.settimeout(seconds)
                return call(*words)
            armed = self._armed.get(option, 0.0)
            if not _TOO_EARLY * seconds <= armed <= seconds:
                armed = self._arm(option, _EARLY * seconds)
            try:
                return call(*words)
            except BlockingIOError:
                self._arm(option, seconds - armed)
                return call(*words)
        except OSError as error:
            raise _translated(error, self.peer) from error

    def _arm(self, option: int, seconds: float) -> float:
        """Set the kernel's time-out for that direction, and return it."""
        whole = int(seconds)
        # Zero would mean no limit.
        micros = max(1, int((seconds - whole) * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, option, pack("@ll", whole, micros))
        self._armed[option] = seconds
        return seconds


def connect(address: Address, deadline: Deadline, tls: ssl.SSLContext | None = None) -> Stream:
    """Return a connection to *address*; with *tls*, its handshake is still to come.

    The deadline does not limit resolving a host's name: the system's resolver has its own limit.

    Raises:
        OutOfTime: it was not established in time.
        ConnectionBroken: it cannot be established.
    """
    try:
        places = _places(address)
    except (OSError, UnicodeError) as error:
        raise ConnectionBroken(f"{address}: {error}") from error
    failure: OSError = OSError("the name has no address")
    for family, kind, protocol, place in places:
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(time_left(deadline))
            sock.connect(place)
            if tls is not None:
                sock = tls.wrap_socket(
                    sock, server_hostname=address.host, do_handshake_on_connect=False
                )
            return Stream(sock, str(address))
        except OSError as error:
            failure = error
            if sock is not None:
                sock.close()
        except BaseException:
            if sock is not None:
                sock.close()
            raise
    raise _translated(failure, str(address)) from failure


_Place = tuple[socket.AddressFamily, socket.SocketKind, int, str | tuple[Any, ...]]
"""Family, kind, protocol, and address: the arguments to make and connect a socket."""


def _places(address: Address) -> list[_Place]:
    if address.path:
        return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, address.path)]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, kind, protocol, place) for family, kind, protocol, _, place in found]


def _translated(error: OSError, peer: str) -> OutOfTime | ConnectionBroken:
    """Return the network error for *error*, which a socket to *peer* raised.

    The kernel's time-out for a lost peer (ETIMEDOUT) is not our deadline, whose error has no
    number, or is a blocking socket's (EAGAIN).
    """
    late = isinstance(error, BlockingIOError | ssl.SSLWantReadError | ssl.SSLWantWriteError)
    if late or (isinstance(error, TimeoutError) and error.errno is None):
        return OutOfTime("the deadline has passed")
    return ConnectionBroken(f"{peer}: {error}")
