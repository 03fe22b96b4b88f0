"""A client's side of one connection with numbered requests, of which many may be under way.

No thread is dedicated to reading. A thread that waits for an answer reads, one thread at a time,
and passes on the answers of others. A connection is over for good when it ends, when the server
sends a malformed message, or when an asynchronous exception left half a message: then another one
is made.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from itertools import count
from threading import Condition
from weakref import WeakValueDictionary, ref

from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime
from hexkv.adapters.net.rpc.answer import Answer
from hexkv.adapters.net.rpc.doubts import NOTICED, Doubts
from hexkv.adapters.net.rpc.pipe import NOW, Pipe
from hexkv.adapters.net.rpc.wire import HEAD, Head, Status, head, message
from hexkv.ports import Clock, Deadline

_AT_ONCE = 65_536
"""Bytes that one call receives."""

_LONGEST = 3600.0


class Turn:
    """The turn to read, or to send, of a thread that has this object."""

    __slots__ = ("__weakref__",)


class Link:
    """One connection. Safe from any thread."""

    def __init__(
        self,
        sock: socket.socket,
        clock: Clock,
        broken: Callable[[], None],
        *,
        most: int,
        generation: int = 0,
        minor: Collection[int] = (),
    ) -> None:
        """Take over *sock*, after the handshake.

        Args:
            sock: connected.
            clock: for deadlines.
            broken: called when the connection is over, or suspect. Short; must not raise.
            most: bytes of a body, either way.
            generation: of the server's life.
            minor: verbs with a deadline of their own, as of :class:`Doubts`.
        """
        self.clock = clock
        self.generation = generation
        self.alive = True
        self.doubts = Doubts(minor)
        self._most = most
        self._broken = broken
        self._pipe = Pipe(sock)
        self._numbers = count(1)
        self._answers: WeakValueDictionary[int, Answer] = WeakValueDictionary()
        """By request, while a caller has the answer. The server may never answer the others."""

        self._reader: ref[Turn] | None = None
        self._sender: ref[Turn] | None = None
        self._half_sent = self._half_read = self._closed = False
        self._ahead = bytearray()
        self._changed = Condition()
        self.heard = clock.now()
        """The time of the server's last message."""

    def fileno(self) -> int:
        """Return the socket's descriptor, to watch for its end; negative once it is closed."""
        return self._pipe.fileno()

    def number(self) -> int:
        """Return a new number for a request."""
        return next(self._numbers)

    def ask(
        self,
        verb: int,
        body: bytes,
        deadline: Deadline,
        request: int = 0,
        *,
        waits: bool = True,
        before: bytes = b"",
        after: bytes = b"",
    ) -> Answer | None:
        """Send a request, to be answered up to *deadline*; ``None`` if it could not be sent.

        Without *waits* the server answers at once. Further messages may come right *before* and
        *after* it.

        Raises:
            BadMessage: it is longer than the server accepts.
        """
        if len(body) > self._most:
            raise BadMessage(f"a request of {len(body)} bytes")
        answer = self.expect(verb, deadline, request)
        seconds = deadline.remaining() if waits else 0.0
        data = message(verb, answer.request, self.generation, body, seconds=seconds)
        if before or after:
            data = before + data + after
        return answer if self._send(data, deadline) else None

    def expect(self, verb: int, deadline: Deadline, request: int = 0) -> Answer:
        """Return the answer to a request that is sent next."""
        answer = Answer(request or self.number(), verb, self.clock.now(), deadline.at)
        self._answers[answer.request] = answer
        return answer

    def call(self, verb: int, body: bytes, deadline: Deadline) -> Answer:
        """Send a request and return its whole answer.

        Raises:
            OutOfTime: it did not come in time.
            ConnectionBroken: the connection has ended.
        """
        answer = self.ask(verb, body, deadline)
        if answer is not None and self.wait(answer, deadline):
            return answer
        if self.alive or deadline.expired:
            raise OutOfTime("the deadline has passed")
        raise ConnectionBroken("the other end closed the connection")

    def tell(self, verb: int, body: bytes, deadline: Deadline) -> bool:
        """Send a message that has no answer."""
        return self._send(message(verb, 0, self.generation, body), deadline)

    def wait(self, answer: Answer, deadline: Deadline, *, begun: bool = False) -> bool:
        """Wait for the whole answer, or with *begun* for its first part. False if it is late.

        Another thread may receive the answer before this call, which then returns at once.
        """
        turn = Turn()
        try:
            while True:
                with self._changed:
                    if answer.is_there(begun=begun):
                        return True
                    left = deadline.remaining()
                    reader = None if self._reader is None else self._reader()
                    if not self.alive or (reader not in (None, turn) and not left):
                        return False
                    if reader not in (None, turn):
                        self._changed.wait(left)
                        continue
                    self._reader = ref(turn)
                self._receive(left)
                if not left and not answer.is_there(begun=begun):
                    self.doubts.late(answer, self.clock.now())
                    if self.doubts.suspect:
                        self._broken()
                    return False
        finally:
            self._leave(turn)

    def listen(self, seconds: float) -> None:
        """Receive messages for *seconds*, unless another thread reads."""
        turn = Turn()
        try:
            if self._may_receive(turn):
                self._receive(seconds)
        finally:
            self._leave(turn)

    def end(self) -> None:
        """Receive what came before the other end closed the connection, and stop using it.

        If another thread reads, that one finds the end, or the next call does.
        """
        turn = Turn()
        try:
            if self._may_receive(turn):
                while self.alive and self._pipe.await_bytes(0.0):
                    self._receive(0.0)
                if self.alive:
                    self.abandon()
        finally:
            self._leave(turn)

    def abandon(self) -> None:
        """Stop using it."""
        with self._changed:
            was, self.alive = self.alive, False
            self._changed.notify_all()
        self._pipe.shut(socket.SHUT_RD)  # wakes the reader; the server still sees our end open
        self._close_unused()
        if was:
            self._broken()

    def leave(self) -> None:
        """Close the socket in a forked child; the parent keeps its own."""
        self.alive = False
        self._closed = True
        self._pipe.close()

    def _close_unused(self) -> None:
        """Close the socket of a connection that is over."""
        self._closed = True
        self._pipe.close()

    def _doubt(self, seconds: float) -> None:
        """Note *seconds* of waiting without an answer."""
        self.doubts.waited(seconds)
        if self.doubts.suspect:
            self._broken()

    def _leave(self, turn: Turn) -> None:
        """Let others read, or send. Calling it twice is allowed."""
        with self._changed:
            if self._reader is not None and self._reader() in (turn, None):
                self._reader = None
            if self._sender is not None and self._sender() in (turn, None):
                self._sender = None
            self._changed.notify_all()

    def _may_receive(self, turn: Turn) -> bool:
        """Take the turn to read, until :meth:`_leave`. False if another thread reads, or none."""
        with self._changed:
            if not self.alive or (self._reader is not None and self._reader() is not None):
                return False
            self._reader = ref(turn)
            return True

    def _receive(self, seconds: float) -> None:
        """Receive the next messages, for *seconds* at most. By one thread at a time."""
        try:
            if self._half_read:  # an asynchronous exception lost the other half
                self.abandon()
                return
            if not self._pipe.await_bytes(min(seconds, _LONGEST) * 1000):
                return
            self._half_read = True
            data = self._pipe.receive(_AT_ONCE, NOW)
            self._ahead += data
            self._half_read = False
            if not data:
                self.abandon()
                return
            self._deal()
        except BlockingIOError:
            self._half_read = False
        except (BadMessage, OSError, ValueError):
            self.abandon()

    def _deal(self) -> None:
        """Pass each whole message to the answer of its request."""
        ahead = self._ahead
        while len(ahead) >= HEAD.size:
            said = head(bytes(ahead[: HEAD.size]), self._most)
            if len(ahead) < (end := HEAD.size + said.length):
                break
            if said.generation != self.generation:
                raise BadMessage("an answer of another life")
            self._told(said, bytes(ahead[HEAD.size : end]))
            del ahead[:end]
        self.heard = self.clock.now()
        self.doubts.end()

    def _told(self, said: Head, body: bytes) -> None:
        answer = self._answers.get(said.request)
        if answer is not None:
            try:
                answer.status = Status(said.status)
            except ValueError as error:
                raise BadMessage(f"status {said.status}") from error
            answer.body = body
            answer.told = True
            answer.final = answer.status is not Status.BEGUN
        if answer is None or answer.final:
            self._answers.pop(said.request, None)
        with self._changed:
            self._changed.notify_all()

    def _send(self, data: bytes, deadline: Deadline) -> bool:
        turn, start = Turn(), self.clock.now()
        try:
            if self._may_send(turn, deadline):
                return self._put(data, deadline)
        finally:
            self._leave(turn)
        self._doubt(self.clock.now() - start)
        return False

    def _may_send(self, turn: Turn, deadline: Deadline) -> bool:
        """Wait for the turn to send. It ends with :meth:`_leave`, or when the call drops it."""
        while self.alive:
            with self._changed:
                if self._sender is None or self._sender() is None:
                    self._sender = ref(turn)
                    return True
                left = deadline.remaining()
                if not left:
                    return False
                self._changed.wait(min(left, NOTICED))
        return False

    def _put(self, data: bytes, deadline: Deadline) -> bool:
        """Send *data* whole. A partial send ends the connection."""
        if self._half_sent:
            self.abandon()
            return False
        rest = memoryview(data)
        try:
            while rest:
                self._half_sent = True
                try:
                    rest = rest[self._pipe.send(rest, NOW) :]
                    continue
                except BlockingIOError:
                    self._half_sent = self._pipe.encrypted or len(rest) < len(data)
                if not self._pipe.await_room(deadline.remaining()):
                    self._doubt(NOTICED)
                    if self._half_sent:
                        self.abandon()
                    return False
            self._half_sent = False
        except ConnectionError:
            self._half_sent = False  # each further send fails, too
            self.end()
            return False
        except (OSError, ValueError):
            self.abandon()
            return False
        return True
