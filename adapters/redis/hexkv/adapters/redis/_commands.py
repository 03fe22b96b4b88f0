"""The four commands on chunks, each for many keys over one connection.

Requests are sent in groups and answered in order. A command records each answer as it arrives,
so that answers from before a broken connection are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from hexkv.adapters.redis._replies import Redirect, judged
from hexkv.adapters.redis._wire import RedisStream, garbled, length
from hexkv.ports import (
    KEY_BYTES,
    Corrupt,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreError,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")
Answers = list[T | Failed | TimedOut | Redirect | None]
"""By the chunk's place in the batch; ``None`` as long as there is no answer."""

LARGEST = 512 << 20
"""The most bytes of a value: the default of the server's ``proto-max-bulk-len``."""

_GROUP_BYTES = 4 << 20
"""Bytes under way before an answer is awaited: enough that round trips do not count."""

_GROUP = 16
"""Values requested at once; the server may hold them all in memory until they are sent."""

_MANY = 4096
"""Keys of a group if answers are a few bytes each."""

_ASKING = b"*1\r\n$6\r\nASKING\r\n"


class BatchCommand(ABC, Generic[T]):
    """An operation on each chunk of a batch."""

    @abstractmethod
    def run(
        self, wire: RedisStream, which: Sequence[int], answers: Answers[T], deadline: Deadline
    ) -> None:
        """Run it for the chunks at *which*, over one connection, and record each answer."""

    def run_asking(
        self, wire: RedisStream, which: Sequence[int], answers: Answers[T], deadline: Deadline
    ) -> None:
        """Run it on a server that is still importing the chunks' slots (``ASKING``)."""
        for i in which:
            wire.send([_ASKING], deadline)
            answer = wire.line(deadline)
            if not answer.startswith((b"+", b"-")):
                raise garbled(answer)
            self.run(wire, [i], answers, deadline)


class Ask(BatchCommand[bool]):
    """A command whose answer is 0 or 1."""

    def __init__(self, word: bytes, prefix: bytes, keys: Sequence[bytes]) -> None:
        check(keys)
        self._head = b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b" % (
            len(word),
            word,
            len(prefix) + KEY_BYTES,
            prefix,
        )
        self._keys = keys

    def run(
        self, wire: RedisStream, which: Sequence[int], answers: Answers[bool], deadline: Deadline
    ) -> None:
        for start in range(0, len(which), _MANY):
            part = which[start : start + _MANY]
            between = b"\r\n" + self._head
            request = self._head + between.join([self._keys[i] for i in part]) + b"\r\n"
            wire.send([request], deadline)
            digits = wire.digits(len(part), deadline)
            if digits is not None:
                for i, digit in zip(part, digits, strict=True):
                    answers[i] = digit == ord("1")
                continue
            for i in part:
                answers[i] = _flag(wire.line(deadline))


def _flag(line: bytes) -> bool | Failed | Redirect:
    if line in (b":0", b":1"):
        return line == b":1"
    if not line.startswith(b"-"):
        raise garbled(line)
    verdict = judged(line[1:])
    return Failed(StoreError(verdict.detail)) if isinstance(verdict, Corrupt) else verdict


class Get(BatchCommand[ReadOutcome]):
    """Reads values into the buffers that a sink gives."""

    def __init__(self, prefix: bytes, keys: Sequence[bytes], sink: Sink) -> None:
        check(keys)
        self._head = b"*2\r\n$3\r\nGET\r\n$%d\r\n%b" % (len(prefix) + KEY_BYTES, prefix)
        self._keys = keys
        self._sink = sink

    def run(
        self,
        wire: RedisStream,
        which: Sequence[int],
        answers: Answers[ReadOutcome],
        deadline: Deadline,
    ) -> None:
        start, count = 0, 1
        while start < len(which):
            part = which[start : start + count]
            start += count
            wire.send(
                [b"".join([b"%b%b\r\n" % (self._head, self._keys[i]) for i in part])], deadline
            )
            largest = 1
            for i in part:
                answers[i], size = self._receive(wire, i, deadline)
                largest = max(largest, size)
            # Chunks are about equally long, so the sizes of the last group give the next count.
            count = min(_GROUP, max(1, _GROUP_BYTES // largest))

    def _receive(
        self, wire: RedisStream, i: int, deadline: Deadline
    ) -> tuple[ReadOutcome | Redirect, int]:
        line = wire.line(deadline)
        if line.startswith(b"-"):
            return judged(line[1:]), 0
        if line == b"$-1":
            return Miss(), 0
        if not line.startswith(b"$"):
            raise garbled(line)
        size = length(line[1:], line)
        room = self._sink.room(i, size)
        if room is None:
            wire.skip(size, deadline)
            return Miss(Reason.REFUSED), size
        wire.value(room, deadline)
        return Hit(size), size


class Set(BatchCommand[WriteOutcome]):
    """Writes values from the callers' buffers."""

    def __init__(self, prefix: bytes, items: Sequence[Item], ttl: float | None) -> None:
        check([item.key for item in items])
        words, self._end = 3, b"\r\n"
        if ttl is not None:
            milliseconds = b"%d" % max(1, round(ttl * 1000))
            words = 5
            self._end = b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(milliseconds), milliseconds)
        self._head = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%b" % (words, len(prefix) + KEY_BYTES, prefix)
        self._items = items

    def run(
        self,
        wire: RedisStream,
        which: Sequence[int],
        answers: Answers[WriteOutcome],
        deadline: Deadline,
    ) -> None:
        for part in self._groups(which, answers):
            parts: list[bytes | memoryview] = []
            for i in part:
                key, frame = self._items[i]
                parts += [b"%b%b\r\n$%d\r\n" % (self._head, key, frame.nbytes), frame, self._end]
            wire.send(parts, deadline)
            for i in part:
                answers[i] = self._answer(wire.line(deadline), i)

    def _groups(
        self, which: Sequence[int], answers: Answers[WriteOutcome]
    ) -> Iterator[Sequence[int]]:
        """Groups of chunks to send before waiting: one large chunk, or several small ones."""
        group: list[int] = []
        size = 0
        for i in which:
            more = self._items[i].frame.nbytes
            if more > LARGEST:
                # The server would close the connection in the middle of the value.
                answers[i] = Failed(StoreError(f"{more} bytes are more than a value takes"))
                continue
            if group and (size + more > _GROUP_BYTES or len(group) == _GROUP):
                yield group
                group, size = [], 0
            group.append(i)
            size += more
        if group:
            yield group

    def _answer(self, line: bytes, i: int) -> WriteOutcome | Redirect:
        if line == b"+OK":
            return Stored(self._items[i].frame.nbytes)
        if not line.startswith(b"-"):
            raise garbled(line)
        verdict = judged(line[1:])
        return Failed(StoreError(verdict.detail)) if isinstance(verdict, Corrupt) else verdict


def check(keys: Sequence[bytes]) -> None:
    """Check the length of *keys*: one of another length would garble all requests after it.

    Raises:
        StoreError: a key does not have ``KEY_BYTES`` bytes.
    """
    if any(len(key) != KEY_BYTES for key in keys):
        raise StoreError(f"a key has {KEY_BYTES} bytes")
