"""A client's side of one connection, to one life of a node: requests by number, and its memory.

No thread is dedicated to reading. A thread that waits for an answer reads, one thread at a time,
and passes on the answers of others. A connection is over for good when it ends, when the node sends
a malformed message, or when an asynchronous exception left half a message: then another one is
made. Its socket stays open while anything is leased over it, because its end tells the node that
the client no longer uses its memory.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import count, repeat
from pathlib import Path
from struct import pack
from threading import Condition
from weakref import WeakValueDictionary, ref

from hexkv.adapters.node.client.answer import Answer
from hexkv.adapters.node.client.doubts import NOTICED, Doubts
from hexkv.adapters.node.greeting import greet
from hexkv.adapters.node.memory import map_sealed
from hexkv.adapters.node.wire import (
    ALL,
    HEAD,
    MAX_BODY,
    Head,
    Malformed,
    Status,
    Verb,
    greeting,
    head,
    message,
    pack_release,
)
from hexkv.ports import Clock, Deadline, StoreUnreachable

_PATIENCE = 5.0
"""Seconds for a greeting."""

_AT_ONCE, _TOGETHER = 65_536, 1024
"""Bytes that one call receives, and leases that one message gives back."""

_MUCH = 1 << 20
"""Bytes given back that are sent to the node at once."""

_NONE: frozenset[int] = frozenset()


class _Turn:
    __slots__ = ("__weakref__",)


class Link:
    """One connection. Safe from any thread."""

    def __init__(self, path: Path, clock: Clock, broken: Callable[[], None]) -> None:
        """Connect to the node whose socket is *path*, and map its memory.

        *broken* is called when the connection is over, or suspect. Short; must not raise.

        Raises:
            StoreUnreachable: no node listens there, or it does not let this process in.
            ConfigError: the node's memory is not sealed, or too short.
        """
        self.clock = clock
        self._broken = broken
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.connect(str(path))
            self._socket.sendall(greeting())
            welcome, descriptor = greet(self._socket)
        except (OSError, ValueError) as error:
            self._socket.close()
            raise StoreUnreachable(f"node {path}: {error}") from error
        except BaseException:
            self._socket.close()
            raise
        self.generation = welcome.generation
        self.pool_bytes = welcome.pool_bytes
        try:
            self.memory = memoryview(map_sealed(descriptor, self.pool_bytes))
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                raise StoreUnreachable(f"node {path}: {error}") from error
            raise
        finally:
            socket.close(descriptor)
        self._socket.setblocking(False)
        self.alive = True
        self.doubts = Doubts()
        self._read = select.poll()
        self._read.register(self._socket, select.POLLIN)
        self._numbers = count(1)
        self._answers: WeakValueDictionary[int, Answer] = WeakValueDictionary()
        """By request, while a caller has the answer. The node may never answer the others."""

        self._returned: deque[tuple[int, int]] = deque()
        self._owed = 0
        """Bytes that were given back and not yet sent to the node."""

        self.ticking = False
        """True while the keeper checks every few milliseconds for leases given back."""

        self._sender: ref[_Turn] | None = None
        self._half_sent = self._half_read = self._closed = False
        self._ahead = bytearray()
        self._changed = Condition()
        self._reader: ref[_Turn] | None = None
        self.heard = clock.now()
        """The time of the node's last message."""

        self._used: dict[int, set[int]] = {}
        """The leases over it: places, by request."""

    def __del__(self) -> None:
        # Also if an asynchronous exception left it listed as used: no code refers to it now.
        with suppress(AttributeError):
            self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, to watch for its end; negative once it is closed."""
        return self._socket.fileno()

    def number(self) -> int:
        """Return a new number for a request."""
        return next(self._numbers)

    def ask(
        self,
        verb: Verb,
        body: bytes,
        deadline: Deadline,
        request: int = 0,
        *,
        waits: bool = True,
        lasts: float | None = None,
    ) -> Answer | None:
        """Send a request, to be answered up to *deadline*; ``None`` if it could not be sent.

        Without *waits* the node answers at once. Its leases end after *lasts* seconds.

        Raises:
            Malformed: it is longer than a node accepts.
        """
        if len(body) > MAX_BODY:
            raise Malformed(f"a request of {len(body)} bytes")
        answer = Answer(request or self.number(), verb, self.clock.now(), deadline.at)
        self._answers[answer.request] = answer
        seconds = deadline.remaining() if waits else 0.0
        data = message(verb, answer.request, self.generation, body, seconds=seconds)
        if lasts is not None:  # under number 0: a node that does not know the verb answers it
            name = pack("<Q", answer.request)
            data += message(Verb.LASTS, 0, self.generation, name, seconds=lasts)
        return answer if self._send(data, deadline) else None

    def tell(self, verb: Verb, body: bytes, deadline: Deadline) -> bool:
        """Send a message that has no answer."""
        return self._send(message(verb, 0, self.generation, body), deadline)

    def wait(self, answer: Answer, deadline: Deadline, *, begun: bool = False) -> bool:
        """Wait for the whole answer, or with *begun* for its first part. False if it is late.

        Another thread may receive the answer before this call, which then returns at once.
        """
        turn = _Turn()
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
        turn = _Turn()
        try:
            with self._changed:
                if self._reader is not None and self._reader() is not None:
                    return
                self._reader = ref(turn)
            self._receive(seconds)
        finally:
            self._leave(turn)

    def use(self, request: int, places: Iterable[int]) -> bool:
        """Note places leased over this connection. False if the node has taken them back."""
        with self._changed:
            if not self._closed:
                self._used.setdefault(request, set()).update(places)
            return not self._closed

    def give_back(self, request: int, places: Collection[int] = (ALL,), size: int = _MUCH) -> None:
        """End leases of *size* bytes at the node: places of a request, or all of it.

        Never waits; may be repeated. Small amounts go to the node with the next request, or at the
        keeper's next tick: waking it each time would take longer than loading a small chunk.
        """
        with self._changed:
            used = self._used.get(request, _NONE)
            # The rest of a request is one name, however many places it has.
            if ALL in places or used.issubset(places):
                self._returned.append((request, ALL))
                self._used.pop(request, None)
            else:
                self._returned.extend(zip(repeat(request), places, strict=False))
                self._used[request].difference_update(places)
            self._owed += size
        if not self.alive:
            self._close_unused()
        elif self._owed >= _MUCH:
            self.send_returned()
        elif not self.ticking:
            self.ticking = True
            self._broken()

    def abandon(self) -> None:
        """Stop using it: from now on only leases over it keep its socket open."""
        with self._changed:
            was, self.alive = self.alive, False
            self._changed.notify_all()
        with suppress(OSError):  # wakes the reader; the node still sees our end open
            self._socket.shutdown(socket.SHUT_RD)
        self._close_unused()
        if was:
            self._broken()

    def leave(self) -> None:
        """Close the socket in a forked child; the parent keeps its own."""
        self.alive = False
        self._closed = True
        with suppress(OSError):
            self._socket.close()

    def _close_unused(self) -> None:
        """Close the socket once nothing is leased: the node may then reuse all of its memory."""
        with self._changed:
            if self._used or self._closed:
                return
            self._closed = True
        with suppress(OSError):
            self._socket.close()

    def _doubt(self, seconds: float) -> None:
        """Note *seconds* of waiting without an answer."""
        self.doubts.waited(seconds)
        if self.doubts.suspect:
            self._broken()

    def _leave(self, turn: _Turn) -> None:
        """Let others read, or send. Calling it twice is allowed."""
        with self._changed:
            if self._reader is not None and self._reader() in (turn, None):
                self._reader = None
            if self._sender is not None and self._sender() in (turn, None):
                self._sender = None
            self._changed.notify_all()

    def _receive(self, seconds: float) -> None:
        """Receive the next messages, for *seconds* at most. By one thread at a time."""
        try:
            if self._half_read:  # an asynchronous exception lost the other half
                self.abandon()
                return
            if not self._read.poll(min(seconds, 3600.0) * 1000):
                return
            self._half_read = True
            data = self._socket.recv(_AT_ONCE)
            self._ahead += data
            self._half_read = False
            if not data:
                self.abandon()
                return
            self._deal()
        except BlockingIOError:
            self._half_read = False
        except (Malformed, OSError, ValueError):
            self.abandon()

    def _deal(self) -> None:
        """Pass each whole message to the answer of its request."""
        ahead = self._ahead
        while len(ahead) >= HEAD.size:
            said = head(bytes(ahead[: HEAD.size]))
            if len(ahead) < (end := HEAD.size + said.length):
                break
            if said.generation != self.generation:
                raise Malformed("an answer of another life")
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
                raise Malformed(f"status {said.status}") from error
            answer.body = body
            answer.told = True
            answer.final = answer.status is not Status.BEGUN
        if answer is None or answer.final:
            self._answers.pop(said.request, None)
        with self._changed:
            self._changed.notify_all()

    def _send(self, data: bytes, deadline: Deadline) -> bool:
        turn, start = _Turn(), self.clock.now()
        try:
            if self._may_send(turn, deadline):
                return self._put(data, deadline)
        finally:
            self._leave(turn)
        self._doubt(self.clock.now() - start)
        return False

    def send_returned(self) -> bool:
        """Send the leases given back; a thread that is sending includes them. True if any were."""
        now = Deadline(self.clock, 0.0)
        was = bool(self._returned)
        while self._returned:
            turn = _Turn()
            try:
                if not self._may_send(turn, now) or not self._put(b"", now):
                    break
            finally:
                self._leave(turn)
        return was

    def _may_send(self, turn: _Turn, deadline: Deadline) -> bool:
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
        """Send *data* whole, after the leases given back. A partial send ends the connection."""
        if self._half_sent:
            self.abandon()
            return False
        self._owed = 0
        names = [self._returned.popleft() for _ in range(min(len(self._returned), _TOGETHER))]
        if names:
            data = message(Verb.RELEASE, 0, self.generation, pack_release(names)) + data
        rest = memoryview(data)
        try:
            while rest:
                self._half_sent = True
                try:
                    rest = rest[self._socket.send(rest, socket.MSG_NOSIGNAL) :]
                    continue
                except BlockingIOError:
                    self._half_sent = len(rest) < len(data)
                if not self._await_room(deadline):
                    self._doubt(NOTICED)
                    if self._half_sent:
                        self.abandon()
                    else:
                        self._returned.extendleft(reversed(names))
                    return False
            self._half_sent = False
        except OSError:
            self.abandon()
            return False
        return True

    def _await_room(self, deadline: Deadline) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(deadline.remaining() * 1000))
