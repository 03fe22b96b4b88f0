"""A client's side of one connection, to one life of a node: requests by number, and its memory.

There is no thread that reads. Whoever waits for an answer reads, one thread at a time, and passes
on what is for others. A connection is over for good when it ends, when the node says what means
nothing, or when an exception out of nowhere left half a message: then another one is made. Its
socket stays open while anything is leased over it, for the node takes its end for the client's
word that nothing of its memory is in use any more.
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

from hexkv.adapters.node.answer import Answer
from hexkv.adapters.node.doubts import NOTICED, Doubts
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
"""Bytes that are received at a time, and leases that one message gives back."""

_MUCH = 1 << 20
"""Bytes given back that the node is told of at once."""

_NONE: frozenset[int] = frozenset()


class _Turn:
    __slots__ = ("__weakref__",)


class Link:
    """One connection. Safe from any thread."""

    def __init__(self, path: Path, clock: Clock, broken: Callable[[], None]) -> None:
        """Connect to the node whose socket is *path*, and map its memory.

        *broken* is told when the connection is over, or suspect. Short; must not raise.

        Raises:
            StoreUnreachable: nobody is there, or this process is not let in.
            ConfigError: the node's memory is not what it must be.
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
        """By request: those that somebody waits for. To others the node may never answer."""

        self._returned: deque[tuple[int, int]] = deque()
        self._owed = 0
        """Bytes that were given back, and the node was not told yet."""

        self.ticking = False
        """True while the keeper looks every few milliseconds for what was given back."""

        self._sender: ref[_Turn] | None = None
        self._half_sent = self._half_read = self._closed = False
        self._ahead = bytearray()
        self._changed = Condition()
        self._reader: ref[_Turn] | None = None
        self.heard = clock.now()
        """When the node last said something."""

        self._used: dict[int, set[int]] = {}
        """What is leased over it: places, by request."""

    def __del__(self) -> None:
        # One that an exception out of nowhere left listed as used: nobody has it any more.
        with suppress(AttributeError):
            self._socket.close()

    def fileno(self) -> int:
        """The socket, to be watched for its end; negative once it is closed."""
        return self._socket.fileno()

    def number(self) -> int:
        """A number for a request; none comes twice."""
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

        The node waits only if asked to. What it leases *lasts* so many seconds.

        Raises:
            Malformed: it is longer than a node takes.
        """
        if len(body) > MAX_BODY:
            raise Malformed(f"a request of {len(body)} bytes")
        answer = Answer(request or self.number(), verb, self.clock.now(), deadline.at)
        self._answers[answer.request] = answer
        seconds = deadline.remaining() if waits else 0.0
        data = message(verb, answer.request, self.generation, body, seconds=seconds)
        if lasts is not None:  # under no number: a node that does not know the verb answers it
            name = pack("<Q", answer.request)
            data += message(Verb.LASTS, 0, self.generation, name, seconds=lasts)
        return answer if self._send(data, deadline) else None

    def tell(self, verb: Verb, body: bytes, deadline: Deadline) -> bool:
        """Send a message that is not answered."""
        return self._send(message(verb, 0, self.generation, body), deadline)

    def wait(self, answer: Answer, deadline: Deadline, *, begun: bool = False) -> bool:
        """Wait for the whole answer, or with *begun* for the first word. False if it is too late.

        An answer that nobody waits for may be received by others, and is there then.
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
        """Receive what comes within so many *seconds*, if nobody else does."""
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
        """Places are leased over this connection. False if the node has taken them back."""
        with self._changed:
            if not self._closed:
                self._used.setdefault(request, set()).update(places)
            return not self._closed

    def give_back(self, request: int, places: Collection[int] = (ALL,), size: int = _MUCH) -> None:
        """Have leases of *size* bytes end at the node: places of a request, or all of it.

        Never waits; may come twice. Of little memory the node is told with the next request, or by
        the keeper's next tick: to wake it each time would take longer than to load a small chunk.
        """
        with self._changed:
            used = self._used.get(request, _NONE)
            # All that is left of a request is one name, whatever it has.
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
        """Use it no more: from now on only what is leased over it keeps its socket open."""
        with self._changed:
            was, self.alive = self.alive, False
            self._changed.notify_all()
        with suppress(OSError):  # whoever reads is told; to the node our end is open still
            self._socket.shutdown(socket.SHUT_RD)
        self._close_unused()
        if was:
            self._broken()

    def leave(self) -> None:
        """This is a forked child: close the socket, which stays the parent's."""
        self.alive = False
        self._closed = True
        with suppress(OSError):
            self._socket.close()

    def _close_unused(self) -> None:
        """Close the socket, once nothing is leased: the node may then use all of it again."""
        with self._changed:
            if self._used or self._closed:
                return
            self._closed = True
        with suppress(OSError):
            self._socket.close()

    def _doubt(self, seconds: float) -> None:
        """So long it was waited in vain."""
        self.doubts.waited(seconds)
        if self.doubts.suspect:
            self._broken()

    def _leave(self, turn: _Turn) -> None:
        """Others may read, or send. Calling it twice is allowed."""
        with self._changed:
            if self._reader is not None and self._reader() in (turn, None):
                self._reader = None
            if self._sender is not None and self._sender() in (turn, None):
                self._sender = None
            self._changed.notify_all()

    def _receive(self, seconds: float) -> None:
        """Receive whatever comes next, up to so many *seconds*. By one thread at a time."""
        try:
            if self._half_read:  # an exception out of nowhere took the other half
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
        """Give each message that is whole to whom it is for."""
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
        """Say what was given back; if somebody is sending, he does it. True if any was."""
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
        """Wait for the turn to send. It ends with :meth:`_leave`, or dies with the call."""
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
        """Send *data* whole, behind what was given back. Half of it ends the connection."""
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
