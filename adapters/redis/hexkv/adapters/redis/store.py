"""A chunk store in Redis or Valkey: one value per chunk, which is its frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.outcomes import outcome_of
from hexkv.adapters.redis._clearing import clear
from hexkv.adapters.redis._commands import Answers, Ask, BatchCommand, Get, Set
from hexkv.adapters.redis._replies import Redirect
from hexkv.adapters.redis._routes import Route
from hexkv.adapters.redis._server import Server
from hexkv.adapters.redis._wire import RedisStream
from hexkv.ports import (
    ChunkKey,
    Deadline,
    Failed,
    Item,
    ReadOutcome,
    Sink,
    StoreError,
    StoreUnreachable,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")

_ROUNDS = 3
"""The number of attempts for a chunk that servers of a cluster redirect."""

_SETTLING = Failed(StoreUnreachable("the cluster's slots are on the move"))


class RedisStore:
    """Keeps frames as string values, each under a prefix and its key.

    Opens no connection before the first call, so that a server that is down does not delay the
    start. Every call uses a connection of its own.

    Args:
        route: to the servers.
        prefix: of every key; other keys on the servers are never read.
        ttl: seconds after which the server drops a chunk; ``None`` for never.
    """

    def __init__(
        self, route: Route, *, prefix: bytes = b"hexkv:", ttl: float | None = None
    ) -> None:
        self._route = route
        self._prefix = prefix
        self._ttl = ttl

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        answers = self._run(keys, Ask(b"EXISTS", self._prefix, keys), deadline)
        flags = [answer for answer in answers if isinstance(answer, bool)]
        if len(flags) == len(keys):
            return flags
        # Chunks of a node that refuses connections are out of reach; a late one may have them.
        if not flags or not all(isinstance(a, bool) or _is_out_of_reach(a) for a in answers):
            raise _worst(answers)
        return [answer is True for answer in answers]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return self._run(keys, Get(self._prefix, keys, sink), deadline)

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        command = Set(self._prefix, items, self._ttl)
        return self._run([item.key for item in items], command, deadline)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        answers = self._run(keys, Ask(b"UNLINK", self._prefix, keys), deadline)
        flags = [answer for answer in answers if isinstance(answer, bool)]
        if len(flags) < len(keys):
            raise _worst(answers)
        return flags

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int:
        try:
            return clear(lambda: self._route.primaries(deadline), self._prefix, prefix, deadline)
        except StoreUnreachable:
            self._route.doubt()
            raise

    def close(self) -> None:
        self._route.close()

    def _run(
        self, keys: Sequence[ChunkKey], command: BatchCommand[T], deadline: Deadline
    ) -> list[T | Failed | TimedOut]:
        """Run *command* on the servers of all chunks; return the answer for each chunk."""
        answers: Answers[T] = [None] * len(keys)
        try:
            tasks = self._route.split([self._prefix + key for key in keys], deadline)
        except OutOfTime:
            self._route.doubt()
            return [TimedOut()] * len(keys)
        for server, which in tasks:
            _attempt(server, which, command.run, answers, deadline)
        for _ in range(_ROUNDS):
            astray: dict[Redirect, list[int]] = {}
            for i, answer in enumerate(answers):
                if isinstance(answer, Redirect):
                    astray.setdefault(answer, []).append(i)
            if not astray:
                break
            for redirect, which in astray.items():
                run = command.run_asking if redirect.asking else command.run
                _attempt(self._route.follow(redirect), which, run, answers, deadline)
        settled = [_SETTLING if isinstance(a, Redirect | None) else a for a in answers]
        if any(_is_doubtful(answer) for answer in settled):
            self._route.doubt()
        return settled


def _attempt(
    server: Server,
    which: Sequence[int],
    run: Callable[[RedisStream, Sequence[int], Answers[T], Deadline], None],
    answers: Answers[T],
    deadline: Deadline,
) -> None:
    """Call *run* on *server*, and record an answer for each chunk even if that fails."""
    for i in which:
        answers[i] = None
    try:
        with server.wire(deadline) as wire:
            run(wire, which, answers, deadline)
    except (OutOfTime, StoreError) as error:
        left = outcome_of(error)
        for i in which:
            if answers[i] is None:
                answers[i] = left


def _is_doubtful(answer: object) -> bool:
    """True if the servers must be looked up again."""
    return _is_out_of_reach(answer) or isinstance(answer, TimedOut)


def _is_out_of_reach(answer: object) -> bool:
    return isinstance(answer, Failed) and isinstance(answer.error, StoreUnreachable)


def _worst(answers: Sequence[object]) -> StoreError:
    """The error to raise for a call without any good answer."""
    for answer in answers:
        if isinstance(answer, Failed) and isinstance(answer.error, StoreError):
            return answer.error
    return StoreUnreachable("no answer in time")
