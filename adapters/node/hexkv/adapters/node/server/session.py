"""A node's side of one connection: reads requests in order, answers each when it is done.

One thread at a time reads. The thread that has read a request answers it, and reads on; it passes
the reading to another thread only before it waits, or starts long work. So requests do not change
threads, few threads are woken, and a request that waits delays none of the others.

A client's memory is its own until it gives it back or its end of the socket is closed, which the
system does when it dies. A client that violates the protocol is no longer answered; its leases last
until its end is closed, because it may be copying.

A session can be *parked*: requests that were read are answered, reading stops, and everything stays
as it is, so that another process can go on with it, or this one.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite
from threading import Lock, Thread

from hexkv.adapters.node.server.asked import Request
from hexkv.adapters.node.server.barrier import Barrier
from hexkv.adapters.node.server.granted import Granted
from hexkv.adapters.node.server.handover import Connection
from hexkv.adapters.node.server.limits import Limits
from hexkv.adapters.node.server.verbs import AT_ONCE, TOLD, VERBS
from hexkv.adapters.node.wire import (
    HEAD,
    Head,
    Malformed,
    Space,
    Status,
    Verb,
    head,
    message,
)
from hexkv.plugins.composition.served import ServedChunks
from hexkv.plugins.threads import before_waiting, step_aside
from hexkv.ports import Clock, Deadline, EngineClosed, InvalidRequest, Lease

log = logging.getLogger("hexkv")

_LONGEST = 86_400.0
_PIECE = 1 << 18
_SPARE = 4


class _Over(Exception):
    """The connection has ended."""


class _Parked(Exception):
    """Reading is stopped by the barrier."""


class _Turn:
    """The turn to read: *mine* is True while its thread has it."""

    __slots__ = ("_session", "mine")

    def __init__(self, session: Session) -> None:
        self.mine = False
        self._session = session

    def give(self) -> None:
        """Pass the turn to another thread, if this one has it."""
        if self.mine:
            self.mine = False
            self._session.read_no_more()


class Session:
    """Answers one client that was let in. :meth:`run` is for any number of threads."""

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
        """Serve a client called *name*, over *sock*, which the session owns from now on.

        *ended* is called when the session is over, or has stopped at the *barrier*.
        """
        self.name = name
        self.served = served
        self.clock = clock
        self.granted = Granted(limits.leased_bytes, clock)
        self.spaces: dict[int, Space] = {}
        self.met: set[tuple[int, bytes]] = set()
        self.pinned: set[str] = set()
        """Owners of pins that end with the connection."""

        self.ahead = bytearray()
        """Bytes that were received and not yet parsed."""

        self._barrier = barrier
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._readable.register(barrier, select.POLLIN)
        self.trusted = False
        """True if it may list the chunks of others: it runs as the node's own user, or root."""

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
        """The descriptor of its socket."""
        return self._socket.fileno()

    def leave(self) -> None:
        """Close this process's copy of the socket, once no thread of this session runs."""
        with self._counting:
            if not self._threads:
                self._socket.close()

    def restore(self, was: Connection, leases: Sequence[Lease]) -> None:
        """Restore *was*, with *leases*, in the process that took over. Call before :meth:`run`."""
        self.spaces = {number: Space(*space) for number, space in was.spaces.items()}
        self.pinned = set(was.pinned)
        self.ahead += was.ahead
        rows = zip(was.leases, leases, strict=True)
        self.granted.restore(
            ((request, place, lease, fresh) for (request, place, fresh, _), lease in rows),
            was.limits,
        )
        self._threads = 0

    def resume(self) -> None:
        """Read on in a new thread, once the barrier was lifted."""
        with self._counting:
            if self._threads:
                return
            self._threads = 1
        Thread(target=self.run, name=f"hexkv node {self.name}", daemon=True).start()

    def run(self) -> None:
        """Answer requests until the connection is over; then give back all that the client had.

        When the barrier is down it returns and leaves everything as it is.
        """
        turn = _Turn(self)
        try:
            while self._await_turn(turn) and (asked := self._next()) is not None:
                if asked.head.verb in AT_ONCE:
                    before_waiting(turn.give)
                else:
                    turn.give()
                self._answer(asked)
                before_waiting(None)
        except Exception:
            log.exception("node: a thread of client %s ends", self.name)
            self._over = True
        finally:
            if turn.mine:
                self._reading.release()
            with self._counting:
                self._threads -= 1
                last = not self._threads
            if last and self._over:
                self._end()
            elif last and self._barrier.down:
                self._ended(self)
            elif last:  # the barrier was lifted in between
                self.resume()

    def dismiss(self, why: str) -> None:
        """Stop answering; the client closes the connection. From any thread."""
        if not self._dismissed:
            self._dismissed = True
            log.info("node: client %s is dismissed: %s", self.name, why)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End the connection, also if the client has leases: the node ends."""
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
                with suppress(BlockingIOError):
                    data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]
                if data:  # the client is slow to read, perhaps because it is sending
                    step_aside()
                    self._socket.sendall(data)
            except OSError as error:
                self.dismiss(f"it takes no answer: {error}")

    def until(self, asked: Head) -> Deadline:
        """Return the time until which the client waits for the last answer to a request."""
        return Deadline.after(self.clock, asked.seconds)

    def read_no_more(self) -> None:
        """Let another thread read on, because the one that has the turn is busy."""
        self._reading.release()
        self._call_reader()

    def _await_turn(self, turn: _Turn) -> bool:
        """Wait for the turn to read. False if enough threads wait already."""
        if turn.mine:
            return True
        with self._counting:
            if self._waiting >= _SPARE:
                return False
            self._waiting += 1
        self._reading.acquire()
        turn.mine = True
        with self._counting:
            self._waiting -= 1
        return True

    def _next(self) -> Request | None:
        """Return the next request that needs an answer; ``None`` when the connection is over.

        For the thread that has the turn.
        """
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
        self._let_go()
        return None

    def _take(self) -> Request | None:
        """Read a message; ``None`` if it needs no further work."""
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
        if (told := TOLD.get(asked.verb)) is not None:
            told(self, asked, body)
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
        return Request(asked, body, grant)

    def _answer(self, asked: Request) -> None:
        what = asked.head
        try:
            verb = VERBS.get(what.verb)
            if verb is None:
                self.send(what, Status.INVALID, b"this node knows no such verb")
            else:
                verb(self, asked)
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

    def _refuse(self, asked: Request, status: Status, why: bytes = b"") -> None:
        """Answer that a request fails, and release its grant."""
        if asked.grant is not None:
            self.granted.release(asked.head.request)
        self.send(asked.head, status, why)

    def _call_reader(self) -> None:
        """Start a thread to read on, if none waits for the turn."""
        with self._counting:
            if self._waiting or self._over:
                return
            self._threads += 1
        try:
            Thread(target=self.run, name=f"hexkv node {self.name}", daemon=True).start()
        except RuntimeError:  # no thread can start: this one reads on when it has answered
            with self._counting:
                self._threads -= 1

    def _receive(self, size: int) -> None:
        """Receive until *size* bytes, already checked, are ahead; each part within the patience."""
        while not self._barrier.down:
            if len(self.ahead) >= size:
                return
            patience = self._limits.patience * 1000 if self.ahead else None
            found = [number for number, _ in self._readable.poll(patience)]
            if not found:
                raise Malformed("a message that does not go on")
            if self._socket.fileno() not in found:
                continue  # the barrier
            part = self._socket.recv(_PIECE)
            if not part:
                raise _Over
            self.ahead += part
        raise _Parked

    def _await_end(self) -> None:
        """Wait for the client to close its end, while it has leases."""
        poll = select.poll()
        poll.register(self._socket, select.POLLHUP)
        while len(self.granted) and not self._over:
            if poll.poll(1000):
                break

    def _let_go(self) -> None:
        """End the client's leases and announcements: it has gone."""
        self.granted.close()
        self.served.announced.gone(self.name)

    def _end(self) -> None:
        self._let_go()
        for owner in self.pinned:
            with suppress(EngineClosed):
                self.served.chunks.unpin(owner)
        with suppress(OSError):
            self._socket.close()
        self._ended(self)
