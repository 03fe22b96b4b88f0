"""A server's side of a connection with numbered requests: reads in order, answers as they are done.

One thread at a time reads. The thread that has read a request answers it, and reads on; it passes
the reading to another thread only before it waits, or starts long work. So requests do not change
threads, few threads are woken, and a request that waits delays none of the others.

A client that violates the protocol is no longer answered. A session can be *parked*: requests that
were read are answered, reading stops, and everything stays as it is, so that another process can go
on with it, or this one.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from math import isfinite
from threading import Lock, Thread, local
from typing import Any

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.asked import ClientBounds, Request
from hexkv.adapters.net.rpc.barrier import Barrier
from hexkv.adapters.net.rpc.pipe import NOW, Pipe
from hexkv.adapters.net.rpc.wire import HEAD, Head, Status, head, message
from hexkv.ports import Clock, Deadline, EngineClosed, InvalidRequest

log = logging.getLogger(__name__)

_LONGEST = 86_400.0
_PIECE = 1 << 18
_SPARE = 4


class _Over(Exception):
    """The connection has ended."""


class _Parked(Exception):
    """The barrier stops reading."""


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
    """Answers one client. :meth:`run` is for any number of threads."""

    at_once: Collection[int] = ()
    """Verbs that are short unless they wait or step aside, which passes the reading on."""

    kind = "client"
    """In the log, and in the names of threads."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        clock: Clock,
        bounds: ClientBounds,
        *,
        generation: int = 0,
        ended: Callable[[Session], None] | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        """Answer a client that was let in.

        Args:
            sock: connected; the session owns it from now on.
            name: of the client.
            clock: for deadlines.
            bounds: of the client.
            generation: of this server.
            ended: called when the session is over, or has stopped at the *barrier*.
            barrier: stops the reading.
        """
        self.name = name
        self.clock = clock
        self.ahead = bytearray()
        """Bytes that were received and not yet parsed."""

        self._pipe = Pipe(sock)
        self._barrier = barrier
        if barrier is not None:
            self._pipe.watch(barrier.fileno())
        self._bounds = bounds
        self._generation = generation
        self._ended = ended
        self._reading = Lock()
        self._sending = Lock()
        self._counting = Lock()
        self._here = local()
        self._threads = 1
        self._waiting = 0
        """Threads that wait for their turn to read."""

        self._under_way = self._answered = 0
        """Requests that were read and not answered, and those of them with a thread."""

        self._queued = 0
        self._queue: deque[Request] = deque()
        self._over = False
        self._dismissed = False

    def respond(self, asked: Request) -> None:
        """Answer a request by :meth:`send`.

        Raises:
            BadMessage: the client does not speak the protocol.
            InvalidRequest: the request is invalid; the client gets the reason.
            EngineClosed: the server ends.
        """
        raise NotImplementedError

    def take(self, head: Head, body: bytes) -> bool:
        """Take a message that is not answered, in order. False if it is a request."""
        del body
        return not head.request

    def note(self, asked: Head) -> Any:
        """Note that a request was read, in order; the result comes with it."""

    def refused(self, asked: Request) -> None:
        """Undo the note of a request that failed."""

    def let_go(self) -> None:
        """End what the client has: it has gone. May be called twice."""

    @property
    def holds(self) -> bool:
        """True while a client that is dismissed has something that it has to give back."""
        return False

    def run(self) -> None:
        """Answer requests until the connection is over; then give back all that the client had.

        When the barrier is down it returns and leaves everything as it is.
        """
        turn = _Turn(self)
        try:
            while self._await_turn(turn) and (asked := self._next()) is not None:
                if asked.head.verb in self.at_once:
                    self.before_waiting(turn.give)
                else:
                    turn.give()
                following = self._answer(asked)
                while following is not None:
                    turn.give()
                    following = self._answer(following)
                self.before_waiting(None)
        except Exception:
            log.exception("%s: a thread of client %s ends", self.kind, self.name)
            self._over = True
        finally:
            if turn.mine:
                self._reading.release()
            with self._counting:
                self._threads -= 1
                last = not self._threads
            if last and self._over:
                self._end()
            elif last and self._barrier is not None and self._barrier.down:
                self._stopped()
            elif last:  # the barrier was lifted in between
                self.resume()

    def resume(self) -> None:
        """Read on in a new thread, once the barrier was lifted."""
        with self._counting:
            if self._threads:
                return
            self._threads = 1
        self._start()

    def dismiss(self, why: str) -> None:
        """Stop answering; the client closes the connection. From any thread."""
        if not self._dismissed:
            self._dismissed = True
            log.info("%s: client %s is dismissed: %s", self.kind, self.name, why)
        self._pipe.shut(socket.SHUT_WR)

    def abort(self) -> None:
        """End the connection, also if the client has something to give back: the server ends."""
        self._over = True
        self._pipe.shut(socket.SHUT_RDWR)

    def send(self, asked: Head, status: Status, body: bytes = b"") -> None:
        """Answer a request."""
        data = message(asked.verb, asked.request, self._generation, body, status=status)
        with self._sending:
            if self._dismissed or self._over:
                return
            try:
                with suppress(BlockingIOError):
                    data = data[self._pipe.send(data, NOW) :]
                if data:  # the client is slow to read, perhaps because it is sending
                    self.step_aside()
                    self._send_rest(memoryview(data))
            except (OSError, ValueError) as error:
                self.dismiss(f"it takes no answer: {error}")

    def until(self, asked: Head) -> Deadline:
        """Return the time until which the client waits for the last answer to a request."""
        return Deadline.after(self.clock, asked.seconds)

    def read_no_more(self) -> None:
        """Let another thread read on, because the one that has the turn is busy."""
        self._reading.release()
        self._call_reader()

    def before_waiting(self, work: Callable[[], None] | None) -> None:
        """Have *work* done once before this thread next waits; ``None``: cancel it."""
        self._here.work = work

    def step_aside(self) -> None:
        """Do this thread's work that is due before it waits."""
        work, self._here.work = getattr(self._here, "work", None), None
        if work is not None:
            work()

    def _send_rest(self, rest: memoryview) -> None:
        until = Deadline.after(self.clock, self._bounds.patience)
        while rest:
            if not self._pipe.await_room(until.remaining()):
                raise TimeoutError("it is too slow")
            with suppress(BlockingIOError):
                rest = rest[self._pipe.send(rest, NOW) :]

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
        """Return the next request to answer; ``None`` when the connection is over.

        For the thread that has the turn.
        """
        try:
            while not self._over:
                asked = self._take()
                if asked is not None:
                    return asked
        except BadMessage as error:
            self.dismiss(str(error))
            while self.holds and not self._over and not self._pipe.await_end(1.0):
                pass
        except _Parked:
            return None
        except _Over:
            pass
        except OSError as error:
            log.info("%s: client %s: %s", self.kind, self.name, error)
        except Exception:
            log.exception("%s: client %s cannot be read", self.kind, self.name)
        self._over = True
        self.let_go()
        return None

    def _take(self) -> Request | None:
        """Read a message; ``None`` if this thread need not answer it."""
        self._receive(HEAD.size)
        asked = head(bytes(self.ahead[: HEAD.size]), self._bounds.largest)
        if self._dismissed:
            raise BadMessage("it was dismissed")
        if asked.generation != self._generation:
            raise BadMessage("a request to another life of this server")
        if not (isfinite(asked.seconds) and asked.seconds >= 0):
            raise BadMessage("a time that is none")
        asked = asked._replace(seconds=min(asked.seconds, _LONGEST))
        end = HEAD.size + asked.length
        if len(self.ahead) < end:
            self._receive(end)
        body = bytes(self.ahead[HEAD.size : end])
        del self.ahead[:end]
        if self.take(asked, body):
            return None
        bounds = self._bounds
        with self._counting:
            busy = (
                self._under_way >= bounds.under_way
                or self._queued + asked.length > bounds.queued_bytes
            )
            if not busy:
                self._under_way += 1
                self._queued += asked.length
                if at_a_time := self._answered < bounds.at_a_time:
                    self._answered += 1
        if busy:
            self.send(asked, Status.BUSY)
            return None
        request = Request(asked, body, self.note(asked))
        return request if at_a_time else self._wait_in_line(request)

    def _wait_in_line(self, asked: Request) -> Request | None:
        """Queue a request, unless its turn has come."""
        with self._counting:
            if self._answered >= self._bounds.at_a_time:
                self._queue.append(asked)
                return None
            self._answered += 1
            return asked

    def _answer(self, asked: Request) -> Request | None:
        """Answer a request. Return one that waited for it, to be answered next."""
        what = asked.head
        try:
            self.respond(asked)
        except BadMessage as error:
            self.dismiss(str(error))
        except InvalidRequest as error:
            self._refuse(asked, Status.INVALID, str(error).encode()[:1024])
        except EngineClosed:
            self._refuse(asked, Status.CLOSED)
        except Exception:
            log.exception("%s: a request of client %s failed", self.kind, self.name)
            self._refuse(asked, Status.FAILED)
        finally:
            with self._counting:
                self._under_way -= 1
                self._queued -= what.length
                following = self._queue.popleft() if self._queue and not self._over else None
                self._answered -= following is None
        return following

    def _refuse(self, asked: Request, status: Status, why: bytes = b"") -> None:
        """Answer that a request fails."""
        self.refused(asked)
        self.send(asked.head, status, why)

    def _call_reader(self) -> None:
        """Start a thread to read on, if none waits for the turn."""
        with self._counting:
            if self._waiting or self._over:
                return
            self._threads += 1
        try:
            self._start()
        except RuntimeError:  # no thread can start: this one reads on when it has answered
            with self._counting:
                self._threads -= 1

    def _start(self) -> None:
        Thread(target=self.run, name=f"hexkv {self.kind} {self.name}", daemon=True).start()

    def _receive(self, size: int) -> None:
        """Receive until *size* bytes, already checked, are ahead."""
        barrier, until = self._barrier, None
        while barrier is None or not barrier.down:
            if len(self.ahead) >= size:
                return
            if self.ahead and until is None:
                until = Deadline.after(self.clock, self._bounds.patience)
            seconds = self._bounds.idle if until is None else until.remaining()
            if not self._pipe.await_bytes(None if seconds is None else seconds * 1000):
                if until is None and self._under_way:
                    continue
                raise BadMessage("a message that does not go on, or none for too long")
            try:
                part = self._pipe.receive(_PIECE, NOW)
            except BlockingIOError:  # the barrier, or half a record of TLS
                continue
            if not part:
                raise _Over
            self.ahead += part
        raise _Parked

    def _end(self) -> None:
        self.let_go()
        self._pipe.close()
        self._stopped()

    def _stopped(self) -> None:
        if self._ended is not None:
            self._ended(self)
