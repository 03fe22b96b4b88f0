"""A node's side of one connection: reads requests in order, answers them as they are done.

One thread at a time reads. The one that has read a request answers it, and another one reads on:
so nothing is handed over on the way, and one request that waits keeps no other waiting. What gives
something back is done by the reader itself, in order.

A client's memory is its own until it says otherwise or its end of the socket is closed, which the
system does when it dies. A client that does not speak the protocol is not answered any more; what
it has leased stays leased until then, for it may be copying.

A session can be *parked*: what was read is answered, nothing more is read, and everything stays as
it is, so that another process can go on with it, or this one.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from struct import pack
from threading import Lock, Thread
from typing import NamedTuple

from hexkv.adapters.node.barrier import Barrier
from hexkv.adapters.node.granted import Grant, Granted
from hexkv.adapters.node.handover import Connection
from hexkv.adapters.node.verbs import VERBS, Request
from hexkv.adapters.node.wire import (
    HEAD,
    Head,
    Malformed,
    Space,
    Status,
    Verb,
    head,
    message,
    read_release,
    read_space,
)
from hexkv.plugins.served import ServedChunks
from hexkv.ports import Clock, Deadline, EngineClosed, InvalidRequest, Lease

log = logging.getLogger("hexkv")

_LONGEST = 86_400.0
_AT_ONCE = 1 << 18
_SPARE = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take."""

    leased_bytes: int
    """Bytes of the pool that it may have leased at a time."""

    under_way: int = 64
    """Requests that it may have under way, each with a thread."""

    queued_bytes: int = 16 << 20
    """Bytes of the bodies of these requests."""

    patience: float = 10.0
    """Seconds for the greeting, for the rest of a message that has begun, and for an answer that
    it does not take."""


class _Over(Exception):
    """The connection has come to its end."""


class _Parked(Exception):
    """Nothing is to be read at present."""


class _Asked(NamedTuple):
    head: Head
    body: bytes
    grant: Grant | None


class Session:
    """Answers one client, which was let in. :meth:`run` is for any number of threads."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        served: ServedChunks,
        generation: int,
        limits: Limits,
        clock: Clock,
        ended: Callable[[Session], None],
        barrier: Barrier,
    ) -> None:
        """Of a client called *name*, over *sock*, which is from now on the session's.

        *ended* is told when all of it is over, or has come to a stop at the *barrier*.
        """
        self.name = name
        self.served = served
        self.clock = clock
        self.granted = Granted(limits.leased_bytes)
        self.spaces: dict[int, Space] = {}
        self.met: set[tuple[int, bytes]] = set()
        self.pinned: set[str] = set()
        """Owners of pins that end with the connection."""

        self.ahead = bytearray()
        """What was received and not taken apart yet."""

        self._barrier = barrier
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._readable.register(barrier, select.POLLIN)
        self.trusted = False
        """True if it may list what others have stored: it is of the node's own user, or root's."""

        self._socket = sock
        self._generation = generation
        self._limits = limits
        self._reading = Lock()
        self._sending = Lock()
        self._counting = Lock()
        self._ended = ended
        self._threads = 1
        self._waiting = 0
        """Threads that wait for their turn to read."""

        self._under_way = 0
        self._queued = 0
        self._over = False
        self._dismissed = False

    @property
    def state(self) -> str:
        """``open``; ``parked``: everything stays as it is; ``dismissed``, or ``over``."""
        with self._counting:
            if self._over:
                return "over"
            if self._dismissed:
                return "dismissed"
            return "open" if self._threads else "parked"

    @property
    def descriptor(self) -> int:
        """Of its socket."""
        return self._socket.fileno()

    def leave(self) -> None:
        """Close the socket, which another process has, once nothing of this session runs."""
        with self._counting:
            if not self._threads:
                self._socket.close()

    def restore(self, was: Connection, leases: Sequence[Lease]) -> None:
        """Go on as *was*, with *leases*, in the process that handed it over. Before it runs."""
        self.spaces = {number: Space(*space) for number, space in was.spaces.items()}
        self.pinned = set(was.pinned)
        self.ahead += was.ahead
        self.granted.restore(
            (request, place, lease, fresh)
            for (request, place, fresh, _), lease in zip(was.leases, leases, strict=True)
        )
        self._threads = 0

    def resume(self) -> None:
        """Read on in a thread of its own, once the barrier was lifted."""
        with self._counting:
            if self._threads:
                return
            self._threads = 1
        Thread(target=self.run, name=f"hexkv node {self.name}", daemon=True).start()

    def run(self) -> None:
        """Answer requests until the connection is over; then give back all that the client had.

        Or until the barrier is down: then everything stays as it is.
        """
        try:
            while self._is_wanted() and (asked := self._next()) is not None:
                self._call_reader()
                self._answer(asked)
        except Exception:
            log.exception("node: a thread of client %s ends", self.name)
            self._over = True
        finally:
            with self._counting:
                self._threads -= 1
                last = not self._threads
            if last and self._over:
                self._end()
            elif last and self._barrier.down:
                self._ended(self)
            elif last:  # the barrier was lifted just now
                self.resume()

    def dismiss(self, why: str) -> None:
        """Answer no more; its end is the client's to close. From any thread."""
        if not self._dismissed:
            self._dismissed = True
            log.info("node: client %s is dismissed: %s", self.name, why)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End the connection, whatever the client has: the node ends."""
        self._over = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, asked: Head, status: Status, body: bytes = b"") -> None:
        """Answer a request."""
        data = message(asked.verb, asked.request, self._generation, body, status=status)
        with self._sending:
            if self._dismissed or self._over:
                return
            try:
                self._socket.sendall(data)
            except OSError as error:
                self.dismiss(f"it takes no answer: {error}")

    def until(self, asked: Head) -> Deadline:
        """When the client expects the last word on a request."""
        return Deadline.after(self.clock, asked.seconds)

    def _next(self) -> _Asked | None:
        """The next request that is not done at once; ``None`` when the connection is over."""
        with self._counting:
            self._waiting += 1
        with self._reading:
            with self._counting:
                self._waiting -= 1
            try:
                while not self._over:
                    asked = self._take()
                    if asked is not None:
                        return asked
            except Malformed as error:
                self.dismiss(str(error))
                self._await_end()
            except _Parked:
                return None
            except _Over:
                pass
            except OSError as error:
                log.info("node: client %s: %s", self.name, error)
            except Exception:
                log.exception("node: client %s cannot be read", self.name)
            self._over = True
            self.granted.close()
        return None

    def _take(self) -> _Asked | None:
        """Read a message; ``None`` if it is done with."""
        self._receive(HEAD.size)
        asked = head(bytes(self.ahead[: HEAD.size]))
        if self._dismissed:
            raise Malformed("it was dismissed")
        if asked.generation != self._generation:
            raise Malformed("a request to another life of this node")
        if not (isfinite(asked.seconds) and asked.seconds >= 0):
            raise Malformed("a time that is none")
        asked = asked._replace(seconds=min(asked.seconds, _LONGEST))
        end = HEAD.size + asked.length
        self._receive(end)
        body = bytes(self.ahead[HEAD.size : end])
        del self.ahead[:end]
        if asked.verb == Verb.RELEASE:
            for request, place in read_release(body):
                self.granted.release(request, place)
            return None
        if asked.verb == Verb.SPACE:
            number, space = read_space(body)
            self.spaces[number] = space
            self.met = {pair for pair in self.met if pair[0] != number}
            return None
        with self._counting:
            busy = (
                self._under_way >= self._limits.under_way
                or self._queued + asked.length > self._limits.queued_bytes
            )
            if not busy:
                self._under_way += 1
                self._queued += asked.length
        if busy:
            self.send(asked, Status.BUSY)
            return None
        grants = asked.verb in (Verb.HOLD, Verb.ALLOCATE)
        grant = self.granted.open(asked.request) if grants else None
        return _Asked(asked, body, grant)

    def _answer(self, asked: _Asked) -> None:
        what, body, grant = asked
        try:
            verb = VERBS.get(what.verb)
            if verb is None:
                self.send(what, Status.INVALID, b"this node knows no such verb")
            else:
                verb(self, Request(what, body, grant))
        except Malformed as error:
            self.dismiss(str(error))
        except InvalidRequest as error:
            self._refuse(asked, Status.INVALID, str(error).encode()[:1024])
        except EngineClosed:
            self._refuse(asked, Status.CLOSED)
        except Exception:
            log.exception("node: a request of client %s failed", self.name)
            self._refuse(asked, Status.FAILED)
        finally:
            with self._counting:
                self._under_way -= 1
                self._queued -= what.length

    def _refuse(self, asked: _Asked, status: Status, why: bytes = b"") -> None:
        """Answer that nothing comes of a request; what it was to lease it has not."""
        if asked.grant is not None:
            self.granted.release(asked.head.request)
        self.send(asked.head, status, why)

    def _call_reader(self) -> None:
        """See to it that somebody reads on."""
        with self._counting:
            if self._waiting or self._over:
                return
            self._threads += 1
        try:
            Thread(target=self.run, name=f"hexkv node {self.name}", daemon=True).start()
        except RuntimeError:  # no more threads: this one reads on when it has answered
            with self._counting:
                self._threads -= 1

    def _is_wanted(self) -> bool:
        """True unless enough threads wait for something to read."""
        with self._counting:
            return self._waiting < _SPARE

    def _receive(self, size: int) -> None:
        """Have *size* bytes ahead. What was announced was checked; it comes within the patience."""
        while not self._barrier.down:
            if len(self.ahead) >= size:
                return
            patience = self._limits.patience * 1000 if self.ahead else None
            found = [number for number, _ in self._readable.poll(patience)]
            if not found:
                raise Malformed("a message that does not go on")
            if self._socket.fileno() not in found:
                continue  # the barrier
            part = self._socket.recv(_AT_ONCE)
            if not part:
                raise _Over
            self.ahead += part
        raise _Parked

    def _await_end(self) -> None:
        """Wait for the client to close its end, as long as it has something leased."""
        poll = select.poll()
        poll.register(self._socket, select.POLLHUP)
        while len(self.granted) and not self._over:
            if poll.poll(1000):
                break

    def _end(self) -> None:
        self.granted.close()
        for owner in self.pinned:
            with suppress(EngineClosed):
                self.served.chunks.unpin(owner)
        with suppress(OSError):
            self._socket.close()
        self._ended(self)


def take_no_longer(sock: socket.socket, seconds: float) -> None:
    """Have every send end after *seconds*; receiving waits for ever."""
    whole = int(seconds)
    micros = int((seconds - whole) * 1e6)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("@ll", whole, micros))
