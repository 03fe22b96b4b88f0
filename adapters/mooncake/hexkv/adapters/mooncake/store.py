"""Chunks in Mooncake: one object each, moved between the pool and the nodes' memory.

The core calls from its workers, and keeps a call's blocks until the call returns. So calls that
touch the pool itself run in the caller's thread, however long they take; all others run on other
threads, and the caller gives up at the deadline.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from hexkv.adapters.mooncake._connection import RetriedConnection
from hexkv.adapters.mooncake._errands import CallThreads, OutOfTime
from hexkv.adapters.mooncake._moving import Move, ObjectMover
from hexkv.adapters.mooncake._native import (
    ABSENT,
    NOT_READY,
    Client,
    ReplicateConfig,
    error_of,
    read_outcome,
)
from hexkv.adapters.mooncake._objects import (
    EMPTY,
    ReadableObject,
    clear,
    fetch,
    fetch_part,
    look,
    name_of,
)
from hexkv.adapters.mooncake._staging import Staging
from hexkv.adapters.mooncake._turns import Turns
from hexkv.ports import (
    KEY_BYTES,
    ChunkKey,
    ChunkStore,
    Corrupt,
    Deadline,
    Failed,
    Hit,
    Item,
    MemoryRegion,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreError,
    StoreUnreachable,
    SupportsClear,
    SupportsRangeRead,
    SupportsRegistration,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")


class MooncakeStore:
    """See the module's text. Safe from any thread."""

    def __init__(
        self,
        connection: RetriedConnection,
        config: ReplicateConfig,
        *,
        prefix: str,
        call_timeout: float,
        staging_bytes: int,
    ) -> None:
        self._connection = connection
        self._config = config
        self._prefix = prefix
        self._call_timeout = call_timeout
        self._threads = CallThreads("mooncake")
        self._mover = ObjectMover(connection, self._threads, Staging(staging_bytes))
        self._turns = Turns()

    def register(self, region: MemoryRegion) -> None:
        self._connection.register(region)

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        if not keys:
            return []
        names = self._names(keys)
        # Take turns: while it is replaced, a chunk is absent for a moment.
        with self._in_time(), self._turns.reading(set(names), deadline):
            codes = self._must(lambda client: client.batch_is_exist(names), deadline)
        return [code == 1 for code in codes]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        if not keys:
            return []
        names = self._names(keys)
        once = list(dict.fromkeys(names))
        with self._in_time(), self._turns.changing(once, deadline):
            codes = self._must(lambda client: client.batch_remove(once, True), deadline)
        gone = {name for name, code in zip(once, codes, strict=True) if code == 0}
        return [name in gone for name in names]

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int:
        start = self._prefix + prefix.hex()
        digits = 2 * (KEY_BYTES - len(prefix))
        # Mooncake uses ECMAScript's regular expressions, where these characters are special.
        literally = re.sub(r"[\\^$.|?*+()\[\]{}/-]", r"\\\g<0>", start)
        pattern = f"^{literally}[0-9a-f]{{{digits}}}$"
        with self._in_time(), self._turns.clearing(start, deadline):
            count = self._ask(lambda client: client.remove_by_regex(pattern, True), deadline)
        if count < 0:
            raise error_of(count)
        return count

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        if deadline.expired:
            return [TimedOut()] * len(keys)
        if not keys:
            return []
        names = self._names(keys)
        try:
            with self._turns.reading(set(names), deadline):
                found = self._ask(partial(look, names=names), deadline)
                outcomes: list[ReadOutcome] = [Miss()] * len(names)
                for which in _once_each(names):
                    self._read(which, names, found, sink, deadline, outcomes)
                return outcomes
        except OutOfTime:
            return [TimedOut()] * len(keys)

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        if deadline.expired:
            return TimedOut()
        name, into = name_of(self._prefix, key), into.cast("B")
        try:
            with self._turns.reading({name}, deadline):
                (found,) = self._ask(partial(look, names=[name]), deadline)
                if isinstance(found, ReadableObject):
                    return self._read_range(name, found, start, into, deadline)
                return read_outcome(found)
        except OutOfTime:
            return TimedOut()

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        if deadline.expired:
            return [TimedOut()] * len(items)
        if not items:
            return []
        names = self._names([item.key for item in items])
        frames = {name: item.frame for name, item in zip(names, items, strict=True)}
        try:
            with self._turns.changing(frames, deadline):
                outcomes = self._write(frames, deadline)
        except OutOfTime:
            return [TimedOut()] * len(items)
        return [
            # Of two frames under one name the last is kept; both count as stored, one after the
            # other.
            Stored(item.frame.nbytes) if isinstance(outcomes[name], Stored) else outcomes[name]
            for name, item in zip(names, items, strict=True)
        ]

    def close(self) -> None:
        self._connection.close()
        self._threads.close()

    def _read(
        self,
        which: Sequence[int],
        names: Sequence[str],
        found: Sequence[ReadableObject | int],
        sink: Sink,
        deadline: Deadline,
        outcomes: list[ReadOutcome],
    ) -> None:
        """Read the chunks at the indexes *which*, no name twice among them, into *outcomes*."""
        rooms: dict[int, memoryview] = {}
        moves = []
        for i in which:
            one = found[i]
            if isinstance(one, int):
                outcomes[i] = read_outcome(one)
            elif one.size == len(EMPTY):
                # It may be the mark of no bytes: only its bytes show the size of the frame.
                moves.append(Move(i, one.size, None))
            elif (room := sink.room(i, one.size)) is None:
                outcomes[i] = Miss(Reason.REFUSED)
            else:
                rooms[i] = room
                moves.append(Move(i, one.size, self._mover.address(room)))

        def take(i: int, frame: memoryview) -> None:
            room = rooms.get(i)
            if room is None:
                frame = frame[:0] if bytes(frame) == EMPTY else frame
                room = sink.room(i, frame.nbytes)
            if room is None:
                outcomes[i] = Miss(Reason.REFUSED)
            else:
                room[:] = frame
                outcomes[i] = Hit(frame.nbytes)

        for group in self._mover.groups(moves):
            there = [one for move in group if isinstance(one := found[move.place], ReadableObject)]
            wanted = [names[move.place] for move in group]
            try:
                codes = self._mover.fetch(
                    group,
                    partial(fetch, names=wanted, found=there),
                    take,
                    deadline,
                )
            except (OutOfTime, StoreError) as error:
                _settle(outcomes, group, error)
                continue
            for move, code in zip(group, codes, strict=True):
                if code < 0:
                    outcomes[move.place] = read_outcome(code)
                elif move.address is not None:
                    outcomes[move.place] = Hit(code)

    def _read_range(
        self, name: str, found: ReadableObject, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        size = into.nbytes
        if found.size == len(EMPTY):
            return self._read_range_of_tiny(name, found, start, into, deadline)
        if start + size > found.size:
            return _too_short(start, size, found.size)
        if not size:
            return Hit(0)
        move = Move(0, size, self._mover.address(into))

        def take(_: int, part: memoryview) -> None:
            into[:] = part

        transfer = partial(fetch_part, name=name, found=found, start=start, size=size)
        try:
            (code,) = self._mover.fetch([move], transfer, take, deadline)
        except StoreError as error:
            return Failed(error)
        return read_outcome(code) if code < 0 else Hit(size)

    def _read_range_of_tiny(
        self, name: str, found: ReadableObject, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        """Read a range of an object that may be the mark: all its bytes are read to find out."""
        sink, outcomes = _Whole(), list[ReadOutcome]([Miss()])
        self._read([0], [name], [found], sink, deadline, outcomes)
        (outcome,) = outcomes
        if not isinstance(outcome, Hit):
            return outcome
        if start + into.nbytes > outcome.size:
            return _too_short(start, into.nbytes, outcome.size)
        into[:] = sink.frame[start : start + into.nbytes]
        return Hit(into.nbytes)

    def _write(
        self, frames: Mapping[str, memoryview], deadline: Deadline
    ) -> Mapping[str, WriteOutcome]:
        names = list(frames)
        codes = self._ask(partial(clear, names=names), deadline)
        outcomes: list[WriteOutcome] = [Failed(error_of(code)) for code in codes]
        moves = []
        for i, (name, code) in enumerate(zip(names, codes, strict=True)):
            frame = frames[name]
            if code:
                continue
            if frame.nbytes == len(EMPTY) and bytes(frame) == EMPTY:
                outcomes[i] = Failed(StoreError("mooncake: this frame is the mark of no bytes"))
                continue
            moves.append(Move(i, frame.nbytes or len(EMPTY), self._mover.address(frame)))

        def give(i: int, into: memoryview) -> None:
            into[:] = frames[names[i]].cast("B") if frames[names[i]].nbytes else EMPTY

        for group in self._mover.groups(moves):
            sizes = [move.size for move in group]
            these = [names[move.place] for move in group]
            try:
                answers = self._mover.send(
                    group, partial(self._put, names=these, sizes=sizes), give, deadline
                )
            except (OutOfTime, StoreError) as error:
                _settle(outcomes, group, error)
                continue
            for move, answer in zip(group, answers, strict=True):
                outcomes[move.place] = Failed(error_of(answer)) if answer else Stored(move.size)
        return dict(zip(names, outcomes, strict=True))

    def _put(
        self,
        client: Client,
        addresses: Sequence[int],
        names: Sequence[str],
        sizes: Sequence[int],
    ) -> list[int]:
        return client.batch_put_from(names, addresses, sizes, self._config)

    def _must(self, call: Callable[[Client], list[int]], deadline: Deadline) -> list[int]:
        """The master's codes; raise for any other error than ``ABSENT`` and ``NOT_READY``."""
        codes = self._ask(call, deadline)
        for code in codes:
            if code < 0 and code not in (ABSENT, NOT_READY):
                raise error_of(code)
        return codes

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """A block of a method without an outcome for a missed deadline: raise StoreUnreachable."""
        try:
            yield
        except OutOfTime as error:
            raise StoreUnreachable("mooncake: no answer in time") from error

    def _ask(self, call: Callable[[Client], T], deadline: Deadline) -> T:
        """Make *call* to the master, on another thread, and return its answer.

        Raises:
            OutOfTime: the deadline or the call timeout passed.
            StoreError: the store was closed, or is unreachable.
        """

        def connected() -> T:
            with self._connection.client(0.0) as client:
                return call(client)

        self._connection.wait(deadline.remaining())
        return self._threads.run(connected, min(deadline.remaining(), self._call_timeout))

    def _names(self, keys: Sequence[ChunkKey]) -> list[str]:
        return [name_of(self._prefix, key) for key in keys]


class _Whole:
    """A sink for one small frame."""

    frame = memoryview(b"")

    def room(self, index: int, size: int) -> memoryview:
        del index
        self.frame = memoryview(bytearray(size))
        return self.frame

    def filled(self, index: int, upto: int) -> None:
        """Ignored: the frame is used only once it is complete."""


def _too_short(start: int, size: int, frame: int) -> Corrupt:
    return Corrupt(f"a frame of {frame} bytes, of which {size} from {start} on are wanted")


def _once_each(names: Sequence[str]) -> list[list[int]]:
    """All indexes in *names*, in lists of which none has a name twice.

    For a name twice in a batch Mooncake answers twice, but fills only one of the two buffers.
    """
    lists: list[list[int]] = []
    times: Counter[str] = Counter()
    for i, name in enumerate(names):
        if times[name] == len(lists):
            lists.append([])
        lists[times[name]].append(i)
        times[name] += 1
    return lists


def _settle(
    outcomes: list[ReadOutcome] | list[WriteOutcome], group: Sequence[Move], error: Exception
) -> None:
    """Set the outcome of a whole group to that of *error*."""
    for move in group:
        outcomes[move.place] = TimedOut() if isinstance(error, OutOfTime) else Failed(error)


def _is_a_store(
    store: MooncakeStore,
) -> tuple[ChunkStore, SupportsRangeRead, SupportsRegistration, SupportsClear]:
    return store, store, store, store  # mypy checks here that it keeps the ports' promises
