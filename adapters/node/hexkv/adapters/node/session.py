"""A node's side of one connection: reads requests in order, answers them as they are done.

One thread at a time reads. The one that has read a request answers it, and reads on; only before
it waits, or does what takes long, it has another one read. So nothing is handed over on the way,
few threads are woken, and one request that waits keeps no other waiting.

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
from math import isfinite
from threading import Lock, Thread

from hexkv.adapters.node.asked import Request
from hexkv.adapters.node.barrier import Barrier
from hexkv.adapters.node.granted import Granted
from hexkv.adapters.node.handover import Connection
from hexkv.adapters.node.limits import Limits
from hexkv.adapters.node.verbs import AT_ONCE, TOLD, VERBS
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
from hexkv.plugins.served import ServedChunks
from hexkv.plugins.threads import before_waiting, step_aside
from hexkv.ports import Clock, Deadline, EngineClosed, InvalidRequest, Lease

log = logging.getLogger("hexkv")

_LONGEST = 86_400.0
_PIECE = 1 << 18
_SPARE = 4


class _Over(Exception):
    """The connection has come to its end."""


class _Parked(Exception):
    """Nothing is to be read at present."""


class _Turn:
    """Whether a thread reads."""

    __slots__ = ("_session", "mine")

    def __init__(self, session: Session) -> None:
        self.mine = False
        self._session = session

    def give(self) -> None:
        """Have another thread read, if this one does."""
        if self.mine:
            self.mine = False
            self._session.read_no_more()


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
        self.granted = Granted(limits.leased_bytes, clock)
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
        rows = zip(was.leases, leases, strict=True)
        self.granted.restore(
            ((request, place, lease, fresh) for (request, place, fresh, _), lease in rows),
            was.limits,
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
                with suppress(BlockingIOError):
                    data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]
                if data:  # the client is slow to take it, and may be so because it sends
                    step_aside()
                    self._socket.sendall(data)
            except OSError as error:
                self.dismiss(f"it takes no answer: {error}")

    def until(self, asked: Head) -> Deadline:
        """When the client expects the last word on a request."""
        return Deadline.after(self.clock, asked.seconds)

    def read_no_more(self) -> None:
        """The thread that reads is busy, and another one is to read on."""
        self._reading.release()
        self._call_reader()

    def _await_turn(self, turn: _Turn) -> bool:
        """Wait for the turn to read. False if enough threads do."""
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
        """The next request that is not done at once; ``None`` when the connection is over.

        For the thread whose turn it is.
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
            part = self._socket.recv(_PIECE)
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

    def _let_go(self) -> None:
        """Nobody is there any more who leases or computes anything."""
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
