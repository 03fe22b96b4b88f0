"""Questions from the scheduler's process to the engines in the workers', over Unix sockets.

They are numbered requests (:mod:`hexkv.adapters.net.rpc`). A question is a JSON object, which has
its number and its ``op``, and the tokens it is about, as uint32 of this machine; an answer is a
JSON object. The generation in the heads is the version. Only the user who runs vLLM can open the
sockets: they lie in a directory of mode 0700, and there is no other authentication.

Where both sides are in one process, questions go by :mod:`~hexkv.adapters.vllm.lookup.in_process`.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from struct import Struct
from threading import Thread

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime
from hexkv.adapters.net.rpc import answer as asking
from hexkv.adapters.net.rpc.asked import ClientBounds, Request
from hexkv.adapters.net.rpc.link import Link
from hexkv.adapters.net.rpc.placed import PlacedSession
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.net.server.server import StreamServer
from hexkv.adapters.net.stream import connect
from hexkv.adapters.vllm.lookup.in_process import (
    PENDING,
    Answer,
    InProcessLookupClient,
    InProcessLookupServer,
    Json,
)
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline

VERSION = 2
MAX_MESSAGE = 64 << 20
"""Bytes: a prompt of 16 million tokens, or all those that wait for an answer."""

_VERB = 1
_SIZE = Struct("<I")
_SENDING = 0.25
"""Seconds for a question on its way to a listener that answers."""

_CONNECTING = 1.0
_AGAIN = 0.02
"""Seconds between two attempts to reach a listener that is waited for."""


def meeting_place(directory: str, instance: str, *, make: bool) -> Path:
    """The directory of the sockets of one vLLM instance.

    Args:
        directory: where to put it; by default the one for temporary files.
        instance: a text that scheduler and workers of one engine share, and no other engine has.
        make: create it, as a worker does.

    Raises:
        PermissionError: it is not ours alone.
    """
    user = Path(directory or tempfile.gettempdir()) / f"hexkv-{os.getuid()}"
    # Unix sockets have short names: at most 107 bytes.
    place = user / sha256(instance.encode()).hexdigest()[:16]
    for path in (user, place):
        if make:
            path.mkdir(mode=0o700, parents=path is user, exist_ok=True)
        elif not path.exists():
            return place
        found = path.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.getuid():
            raise PermissionError(f"{path} is not a directory of mode 0700 of this user")
    return place


def socket_path(place: Path, rank: int) -> Path:
    """The path of the socket of the worker of *rank*."""
    return place / f"{rank}.sock"


class ChannelServer(StreamServer):
    """Answers questions on threads of its own. Closed by :meth:`close`.

    Args:
        path: of the socket.
        answer: called from several threads at once.
        threads: how many questions are answered at once, so that one slow store does not
            keep all others waiting.

    Raises:
        ConfigError: another process listens there.
    """

    def __init__(self, path: Path, answer: Answer, *, threads: int = 4) -> None:
        self._answer = answer
        self._bounds = ClientBounds(
            under_way=PENDING,
            at_a_time=threads,
            queued_bytes=2 * MAX_MESSAGE,
            largest=2 * MAX_MESSAGE,
        )
        listener = Listener(Address(path=str(path)))
        name = "hexkv lookups"
        super().__init__(listener, self._attend, SystemClock(), Limits(MAX_MESSAGE), name=name)
        self._thread = Thread(target=self.run, name=name, daemon=True)
        self._thread.start()
        self._in_process = InProcessLookupServer(path, self._answered, threads)

    def close(self, seconds: float = 2.0) -> None:
        """Stop listening, and wait a while for answers under way. Twice is allowed."""
        self._in_process.close()
        self.stop()
        self._thread.join(seconds)

    def _attend(self, connection: Connection) -> None:
        connection.known = True
        _Lookups(connection, self._bounds, self._answered).attend()

    def _answered(self, question: Json, tokens: memoryview) -> Json:
        try:
            answer = self._answer(question, tokens)
        except Exception as error:  # noqa: BLE001 - the caller gets it; this thread goes on
            answer = {"error": f"{type(error).__name__}: {error}"}
        return {**answer, "n": question["n"]}


class _Lookups(PlacedSession):
    """Answers one scheduler."""

    kind = "lookups"

    def __init__(self, connection: Connection, bounds: ClientBounds, answer: Answer) -> None:
        super().__init__(connection, bounds, generation=VERSION)
        self._answer_to = answer

    def respond(self, asked: Request) -> None:
        end = _SIZE.size + int.from_bytes(asked.body[: _SIZE.size], "little")
        question = {**_parsed(asked.body[_SIZE.size : end]), "n": asked.head.request}
        answer = self._answer_to(question, memoryview(asked.body)[end:])
        self.send(asked.head, Status.DONE, json.dumps(answer).encode())


def _parsed(data: bytes) -> dict[str, object]:
    """Return a JSON object.

    Raises:
        BadMessage: it is none.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage("no JSON") from error
    if not isinstance(found, dict):
        raise BadMessage("no object")
    return found


class _Socket:
    """A connection to a listener in another process, made anew when it has ended."""

    def __init__(self, path: Path) -> None:
        self._address = Address(path=str(path))
        self._clock = SystemClock()
        self._link: Link | None = None
        self._asked: dict[int, asking.Answer] = {}
        self._late = False
        """True since the listener was too slow to take a question, until it answers."""

    def send(self, question: Json, tokens: bytes) -> bool:
        """Send a question. Return False if there is no listener to take it."""
        link = self._connected()
        if link is None or len(self._asked) >= PENDING:
            return False
        number, text = int(str(question["n"])), json.dumps(question).encode()
        soon = Deadline.after(self._clock, 0.0 if self._late else _SENDING)
        answer = link.ask(_VERB, b"".join((_SIZE.pack(len(text)), text, tokens)), soon, number)
        self._late = answer is None
        if answer is not None:
            self._asked[number] = answer
        return answer is not None

    def receive(self, seconds: float) -> list[Json]:
        """Return the answers that have arrived; if there are none, wait for one."""
        if self._link is not None:
            self._link.listen(seconds)
        alive = self._link is not None and self._link.alive
        over = [number for number, answer in self._asked.items() if answer.final or not alive]
        self._late = self._late and not over
        return [_said(number, self._asked.pop(number)) for number in over]

    def reachable(self, seconds: float) -> bool:
        """True if there is a listener; waits for it that long."""
        until = Deadline.after(self._clock, seconds)
        while self._connected() is None:
            if until.expired:
                return False
            time.sleep(min(_AGAIN, until.remaining()))
        return True

    def close(self) -> None:
        """Close the connection. Twice is allowed."""
        if self._link is not None:
            self._link.abandon()

    def _connected(self) -> Link | None:
        if self._link is not None:
            self._link.listen(0.0)  # answers that are never waited for would fill the socket
            if self._link.alive:
                return self._link
            for answer in self._asked.values():  # the next connection brings none of them
                answer.final = True
        try:
            sock = connect(self._address, Deadline.after(self._clock, _CONNECTING)).detach()
        except (OutOfTime, ConnectionBroken):
            return None
        most, clock = 2 * MAX_MESSAGE, self._clock
        self._link = Link(sock, clock, lambda: None, most=most, generation=VERSION)
        return self._link


def _said(number: int, answer: asking.Answer) -> Json:
    """Return the answer to a question; an error if there is none."""
    if answer.status is Status.DONE:
        with suppress(BadMessage):
            return {**_parsed(answer.body), "n": number}
    return {"error": "the worker does not answer", "n": number}


class ChannelClient:
    """Asks one listener. For one thread. Closed by :meth:`close`.

    A listener that let a question wait until its deadline is not waited for again until it
    answers. While questions with more than :data:`MAX_MESSAGE` bytes of tokens are
    unanswered, further ones are refused.

    Args:
        path: of the listener's socket; a listener in this process is called without it.
        now: the time, seconds.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._way = (
            InProcessLookupClient(path) if InProcessLookupClient.leads_to(path) else _Socket(path)
        )
        self._number = 0
        self._wanted: dict[int, Json | None] = {}
        self._unanswered: dict[int, int] = {}
        """Bytes of tokens by question; the listener answers each, even if it was dropped."""

        self._waiting = 0
        self.silent = False

    def ask(self, op: str, tokens: bytes = b"", *, wanted: bool = True, **more: object) -> int:
        """Send a question. Return its number, or 0 if no listener takes it or too much waits.

        Args:
            op: the operation.
            tokens: those that it is about.
            wanted: True if the caller will :meth:`take` the answer.
            more: further fields of the question.
        """
        if not self._room(len(tokens)):
            return 0
        self._number += 1
        if not self._way.send({**more, "n": self._number, "op": op}, tokens):
            return 0
        if tokens:
            self._unanswered[self._number] = len(tokens)
            self._waiting += len(tokens)
        if wanted:
            self._wanted[self._number] = None
        return self._number

    def take(self, number: int, seconds: float = 0.0) -> Json | None:
        """The answer to a question, once. ``None``: there is none yet; ask again, or :meth:`drop`.

        Args:
            number: of the question.
            seconds: how long to wait for it.
        """
        until = self._now() + seconds
        self._receive(0.0)
        while self._wanted.get(number) is None:
            left = until - self._now()
            if number not in self._wanted or left <= 0 or self.silent:
                self.silent = self.silent or seconds > 0
                return None
            self._receive(left)
        return self._wanted.pop(number)

    def drop(self, number: int) -> None:
        """Discard the answer to a question."""
        self._wanted.pop(number, None)

    def reachable(self, seconds: float) -> bool:
        """True if there is a listener; waits for it that long."""
        return self._way.reachable(seconds)

    def close(self) -> None:
        """Close the connection. Twice is allowed."""
        self._way.close()

    def _room(self, size: int) -> bool:
        """True if *size* more bytes of tokens may wait; receives answers first if need be."""
        if size and self._waiting + size > MAX_MESSAGE:
            self._receive(0.0)
        return not size or self._waiting + size <= MAX_MESSAGE

    def _receive(self, seconds: float) -> None:
        """Take in the answers that have arrived; if there are none, wait for one."""
        for answer in self._way.receive(seconds):
            self.silent = False
            number = answer.get("n")
            if isinstance(number, int):
                self._waiting -= self._unanswered.pop(number, 0)
                if number in self._wanted:
                    self._wanted[number] = answer
