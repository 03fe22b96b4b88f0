"""Questions from the scheduler's process to the engines in the workers', over Unix sockets.

A question is two parts: a JSON object with ``v`` (version), ``n`` (its number) and ``op``,
and the tokens it is about, as uint32 of this machine. An answer is one JSON object with the
same ``v`` and ``n``. Only the user who runs vLLM can open the sockets: they lie in a
directory of mode 0700, and there is no other authentication.

Where both sides are in one process, questions go by :mod:`~hexkv.adapters.vllm.lookup.in_process`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import zmq

from hexkv.adapters.vllm.lookup.in_process import (
    PENDING,
    Answer,
    InProcessLookupClient,
    InProcessLookupServer,
    Json,
)

VERSION = 1
MAX_MESSAGE = 64 << 20
"""Bytes: a prompt of 16 million tokens, or all those that wait for an answer."""

_RECONNECT_MS = 20
_HANDSHAKE_MS = 5000
"""Milliseconds for the whole greeting of a connection, after which ZeroMQ ends it."""

log = logging.getLogger("vllm.hexkv")


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


class ChannelServer:
    """Answers questions on threads of its own. Closed by :meth:`close`.

    Args:
        path: of the socket.
        answer: called from several threads at once.
        threads: how many questions are answered at once, so that one slow store does not
            keep all others waiting.
    """

    def __init__(self, path: Path, answer: Answer, *, threads: int = 4) -> None:
        self._path = path
        self._answer = answer
        self._context = zmq.Context()
        front = self._context.socket(zmq.ROUTER)
        back = self._context.socket(zmq.DEALER)
        for side in (front, back):
            side.setsockopt(zmq.LINGER, 0)
            side.setsockopt(zmq.SNDHWM, PENDING)
            side.setsockopt(zmq.RCVHWM, PENDING)
            side.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
            side.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        path.unlink(missing_ok=True)
        front.bind(f"ipc://{path}")
        back.bind("inproc://answers")
        self._threads = [threading.Thread(target=self._pass_on, args=(front, back), daemon=True)]
        # Their sockets are made here: a thread that starts late may find a context that is over.
        self._threads += [
            threading.Thread(target=self._serve, args=(self._inside(),), daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self._in_process = InProcessLookupServer(path, self._answered, threads)

    def close(self, seconds: float = 2.0) -> None:
        """Stop listening, and wait a while for answers under way. Twice is allowed."""
        self._in_process.close()
        if self._threads:
            end = threading.Thread(target=self._context.term, daemon=True)
            end.start()
            end.join(seconds)
            self._threads = []
            self._path.unlink(missing_ok=True)

    @staticmethod
    def _pass_on(front: zmq.Socket[bytes], back: zmq.Socket[bytes]) -> None:
        try:
            zmq.proxy(front, back)
        except zmq.ContextTerminated:
            pass
        finally:
            front.close()
            back.close()

    def _inside(self) -> zmq.Socket[bytes]:
        """A socket that receives questions, for one thread."""
        # A DEALER, not a REP: a malformed question gets no answer, and does no harm.
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect("inproc://answers")
        return socket

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while True:
                parts = socket.recv_multipart(copy=False)
                reply = self._reply(parts[1:]) if len(parts) == 3 else None
                if reply is not None:
                    socket.send_multipart([parts[0].bytes, reply])
        except zmq.ContextTerminated:
            pass
        finally:
            socket.close()

    def _reply(self, parts: list[zmq.Frame]) -> bytes | None:
        try:
            question = json.loads(parts[0].bytes)
            number = question["n"]
            strange = question["v"] != VERSION
        except (ValueError, KeyError, TypeError):
            return None
        if strange:
            fields = {"error": f"this side speaks version {VERSION}", "v": VERSION, "n": number}
        else:
            fields = dict(self._answered(question, parts[1].buffer))
        return json.dumps(fields).encode()

    def _answered(self, question: Json, tokens: memoryview) -> Json:
        try:
            answer = self._answer(question, tokens)
        except Exception as error:  # noqa: BLE001 - the caller gets it; this thread goes on
            answer = {"error": f"{type(error).__name__}: {error}"}
        return {**answer, "v": VERSION, "n": question["n"]}


class _Way(Protocol):
    """A connection to a listener. For one thread."""

    def send(self, question: Json, tokens: bytes) -> bool: ...
    def receive(self, seconds: float) -> list[Json]: ...
    def reachable(self, seconds: float) -> bool: ...
    def close(self) -> None: ...


class _Socket:
    """A connection to a listener in another process."""

    def __init__(self, path: Path) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, PENDING)
        self._socket.setsockopt(zmq.RCVHWM, PENDING)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        # Without a listener a question fails at once; it is not kept for one that comes later.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.connect(f"ipc://{path}")

    def send(self, question: Json, tokens: bytes) -> bool:
        """Send a question. Return False if there is no listener to take it."""
        try:
            self._socket.send_multipart([json.dumps(question).encode(), tokens], flags=zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self, seconds: float) -> list[Json]:
        """Return the answers that have arrived; if there are none, wait for one."""
        answers: list[Json] = []
        if self._socket.poll(math.ceil(seconds * 1000)):
            with suppress(zmq.Again):
                while True:
                    answers.append(json.loads(self._socket.recv(zmq.DONTWAIT)))
        return answers

    def reachable(self, seconds: float) -> bool:
        """True if there is a listener; waits for it that long."""
        return bool(self._socket.poll(int(seconds * 1000), zmq.POLLOUT))

    def close(self) -> None:
        """Close the socket. Twice is allowed."""
        self._socket.close()
        self._context.term()


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
        self._way: _Way = (
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
        if not self._way.send({**more, "v": VERSION, "n": self._number, "op": op}, tokens):
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
