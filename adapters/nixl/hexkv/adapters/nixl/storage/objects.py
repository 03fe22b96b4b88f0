"""Chunks in an object store, by NIXL's plug-in OBJ.

The plug-in can write objects, read ranges of them and test that one exists. It cannot get a size,
delete or list. A read beyond an object's end leaves the memory unchanged there, and is reported
as done. So an object contains its own size, and a mark at both ends::

    head   8 bytes  b"hexkvOBJ"
           8        bytes of the frame, little-endian; all ones: deleted
          16        a random word
    frame
    tail  16        the same word

The word shows that both were written by one call, and that all bytes between them have arrived.
A deleted object is a small head alone; a lifecycle rule of the bucket removes old ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import count
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from hexkv.adapters.net.errors import OutOfTime, time_left
from hexkv.adapters.nixl.agent import Agent
from hexkv.adapters.nixl.storage.mover import ASKED, UNFILLED, Mover, NixlRange
from hexkv.adapters.nixl.storage.staging import Shared, Slot, Turns
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Corrupt,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Reason,
    SharedMedium,
    Sink,
    Stored,
    StoreError,
    StoreUnreachable,
    SupportsRangeRead,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")

MAGIC = b"hexkvOBJ"
HEAD = Struct("<8sQ16s")
WORD = UNFILLED
DELETED = 2**64 - 1

_TRIES = 64
"""The number of attempts, before the deadline, to read an object that is being replaced."""

_LARGEST = 1 << 40
"""The most bytes of a frame; a head with more is not one of ours."""


class ObjectHead(NamedTuple):
    """The head of an object."""

    size: int
    word: bytes

    @property
    def deleted(self) -> bool:
        """True if there is no frame."""
        return self.size == DELETED


def framed(frame: memoryview, into: memoryview) -> None:
    """Write *frame* with head and tail to *into*, which has exactly that length."""
    word = secrets.token_bytes(WORD)
    HEAD.pack_into(into, 0, MAGIC, frame.nbytes, word)
    into[HEAD.size : HEAD.size + frame.nbytes] = frame
    into[HEAD.size + frame.nbytes :] = word


def headed(data: memoryview) -> ObjectHead | None:
    """Parse the head of an object; ``None`` if it is not one of ours."""
    magic, size, word = HEAD.unpack_from(data)
    known = magic == MAGIC and any(word)  # zeros: not filled
    return ObjectHead(size, word) if known and (size <= _LARGEST or size == DELETED) else None


class NixlObjectStore:
    """See the module's text. Safe from any thread.

    Args:
        mover: with the plug-in; closed with this.
        prefix: of every object's name.
    """

    def __init__(self, mover: Mover, prefix: str) -> None:
        self._mover = mover
        self._prefix = prefix
        self._turns = Turns()
        self._numbers = count(1)
        self._asking: Agent = mover.asking()

    @property
    def shared(self) -> bool:
        """True: any process with access to the bucket may add and remove chunks."""
        return True

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        if not keys:
            return []
        there = self._must(lambda: self._there(keys, deadline))
        return [
            here and self._must(lambda key=key: self._live(key, deadline))  # type: ignore[misc]
            for key, here in zip(keys, there, strict=True)
        ]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        def room(index: int) -> Callable[[int], memoryview | None]:
            return lambda size: sink.room(index, size)

        return self._reads(keys, [room(i) for i in range(len(keys))], 0, deadline)

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        (outcome,) = self._reads([key], [lambda _: into], start, deadline)
        return outcome

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        return [self._write(key, frame.cast("B"), deadline) for key, frame in items]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        if not keys:
            return []
        there = self._must(lambda: self._there(keys, deadline))
        return [
            here and self._must(lambda key=key: self._delete(key, deadline))  # type: ignore[misc]
            for key, here in zip(keys, there, strict=True)
        ]

    def close(self) -> None:
        self._mover.close()
        self._asking.close(0.0)  # a query may take long; its thread ends after it

    def _reads(
        self,
        keys: Sequence[ChunkKey],
        rooms: Sequence[Callable[[int], memoryview | None]],
        start: int,
        deadline: Deadline,
    ) -> list[ReadOutcome]:
        if not keys:
            return []
        try:
            there = self._there(keys, deadline)
        except OutOfTime:
            return [TimedOut()] * len(keys)
        except StoreError as error:
            return [Failed(error)] * len(keys)
        return [
            self._read(key, room, start, deadline) if here else Miss()
            for key, room, here in zip(keys, rooms, there, strict=True)
        ]

    def _read(
        self,
        key: ChunkKey,
        room: Callable[[int], memoryview | None],
        start: int,
        deadline: Deadline,
    ) -> ReadOutcome:
        try:
            head = self._head(key, deadline)
            for _ in range(_TRIES):
                if head is None:
                    return Corrupt("an object without a head of ours")
                if head.deleted:
                    return Miss()
                into = room(head.size)
                if into is None:
                    return Miss(Reason.REFUSED)
                into = into.cast("B")
                if start + into.nbytes > head.size:
                    return Corrupt(f"a frame of {head.size} bytes, of which there should be more")
                wrong = self._frame(key, head, start, into, deadline)
                if wrong is None:
                    return Hit(into.nbytes)
                before, head = head, self._head(key, deadline)
                if head == before:
                    return wrong
        except OutOfTime:
            return TimedOut()
        except StoreError as error:
            return Failed(error)
        return Failed(StoreUnreachable("the object is replaced again and again"))

    def _frame(
        self, key: ChunkKey, head: ObjectHead, start: int, into: memoryview, deadline: Deadline
    ) -> Corrupt | Failed | None:
        """Fill *into* from byte *start* of the frame on; return the error, if any.

        The error may be due to a replacement of the object since *head* was read.
        """
        # Always read to the tail: only the tail shows that all bytes arrived.
        size = head.size - start + WORD
        try:
            with self._mover.fetch(self._place(key, HEAD.size + start), size, deadline) as slot:
                if bytes(slot.view[size - WORD : size]) != head.word:
                    return Corrupt("an object whose tail is not that of its head")
                into[:] = slot.view[: into.nbytes]
        except StoreError as error:
            return Failed(error)
        return None

    def _write(self, key: ChunkKey, frame: memoryview, deadline: Deadline) -> WriteOutcome:
        try:
            with self._turn(key, deadline) as turn:
                size = HEAD.size + frame.nbytes + WORD
                with self._mover.stage(size, deadline) as slot:
                    framed(frame, slot.view)
                    self._send(key, slot, size, deadline, turn)
        except OutOfTime:
            return TimedOut()
        except StoreError as error:
            return Failed(error)
        return Stored(frame.nbytes)

    def _delete(self, key: ChunkKey, deadline: Deadline) -> bool:
        with self._turn(key, deadline) as turn:
            head = self._head(key, deadline)
            if head is not None and head.deleted:
                return False
            with self._mover.stage(HEAD.size, deadline) as slot:
                HEAD.pack_into(slot.view, 0, MAGIC, DELETED, secrets.token_bytes(WORD))
                self._send(key, slot, HEAD.size, deadline, turn)
        return True

    def _send(self, key: ChunkKey, slot: Slot, size: int, deadline: Deadline, turn: Shared) -> None:
        # The turn is held for as long as the object may still change.
        self._mover.send(self._place(key), slot, size, deadline, [turn.share()])

    def _turn(self, key: ChunkKey, deadline: Deadline) -> Shared:
        time_left(deadline)
        return self._turns.take(key, deadline)

    def _live(self, key: ChunkKey, deadline: Deadline) -> bool:
        head = self._head(key, deadline)
        return head is None or not head.deleted

    def _head(self, key: ChunkKey, deadline: Deadline) -> ObjectHead | None:
        with self._mover.fetch(self._place(key), HEAD.size, deadline) as slot:
            return headed(slot.view)

    def _there(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[bool]:
        """Return True for each of *keys* that has an object.

        Raises:
            OutOfTime, StoreError: that cannot be determined.
        """
        names = list(dict.fromkeys(self._name(key) for key in keys))
        found: list[object | None] = []
        for start in range(0, len(names), ASKED):
            asked = [(0, 0, 0, name) for name in names[start : start + ASKED]]

            def ask(agent: Any, asked: list[Any] = asked) -> list[object | None]:
                if deadline.expired:  # the caller has given up
                    return []
                answers: list[object | None] = agent.query_memory(asked, "OBJ", mem_type="OBJ")
                return answers

            found += self._asking.call(ask, time_left(deadline))
        if len(found) != len(names):
            raise OutOfTime("NIXL is busy with other questions")
        here = {name for name, answer in zip(names, found, strict=True) if answer is not None}
        return [self._name(key) in here for key in keys]

    def _must(self, call: Callable[[], T]) -> T:
        """Run *call*, for methods without an outcome for a missed deadline.

        Raises:
            StoreUnreachable: the deadline passed.
        """
        try:
            return call()
        except OutOfTime as error:
            raise StoreUnreachable("NIXL: no answer in time") from error

    def _place(self, key: ChunkKey, start: int = 0) -> NixlRange:
        return NixlRange("OBJ", next(self._numbers), self._name(key), start)

    def _name(self, key: ChunkKey) -> str:
        return self._prefix + key.hex()


def _is_a_store(store: NixlObjectStore) -> tuple[ChunkStore, SupportsRangeRead, SharedMedium]:
    return store, store, store  # mypy checks here that it keeps the ports' promises
