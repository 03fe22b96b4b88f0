"""Frames in this process's memory beside the pool, each of its own size: compressed memory."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from hexkv.plugins.available import available_bytes
from hexkv.plugins.mapped import advise_huge, populate
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkStore,
    Clock,
    Deadline,
    Entry,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreError,
    StoreFull,
    SupportsOwnMemory,
    SupportsRangeRead,
    SupportsScan,
    TimedOut,
    WriteOutcome,
)

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class _Kept(NamedTuple):
    memory: mmap.mmap | bytearray
    stored: float


class HeapStore:
    """Keeps copies of frames in mappings of their own, which the system has back at once.

    The pool's blocks are of one size, so an encoded frame that takes more than half of one takes
    all of it there. Here it takes the pages that it has. A frame is copied in and out beside the
    interpreter's lock, by the tier's workers, which also encode and decode.

    Args:
        clock: of the times that :meth:`scan` gives.
        capacity: bytes of all frames; by default a quarter of what the machine has left.

    Raises:
        StoreFull: the machine does not have *capacity* bytes.
    """

    def __init__(self, clock: Clock, capacity: int | None = None) -> None:
        available = available_bytes()
        if capacity is not None and capacity > available:
            raise StoreFull(f"{capacity:,} bytes of memory are wanted, {available:,} are available")
        self._capacity = available // 4 if capacity is None else capacity
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[ChunkKey, _Kept] = {}
        self._used = 0
        self._closed = False

    @property
    def own_memory(self) -> bool:
        return True

    @property
    def used_bytes(self) -> int:
        """Bytes of the frames, those being written included."""
        return self._used

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline
        with self._lock:
            self._check_open()
            return [key in self._kept for key in keys]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        outcomes: list[ReadOutcome] = []
        for index, key in enumerate(keys):
            memory = self._find(key)
            if deadline.expired:
                outcomes.append(TimedOut())
            elif memory is None:
                outcomes.append(Miss())
            elif (room := sink.room(index, len(memory))) is None:
                outcomes.append(Miss(Reason.REFUSED))
            else:
                _copy(memoryview(memory), room)
                outcomes.append(Hit(len(memory)))
        return outcomes

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        memory = self._find(key)
        if deadline.expired:
            return TimedOut()
        if memory is None or start + len(into) > len(memory):
            return Miss()
        _copy(memoryview(memory)[start : start + len(into)], into)
        return Hit(len(into))

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        return [self._write(key, frame, deadline) for key, frame in items]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline
        with self._lock:
            self._check_open()
            gone = [self._kept.pop(key, None) for key in keys]
            self._used -= sum(len(kept.memory) for kept in gone if kept is not None)
        return [kept is not None for kept in gone]

    def scan(self) -> Iterator[Entry]:
        with self._lock:
            self._check_open()
            kept = list(self._kept.items())
        for key, (memory, stored) in kept:
            yield Entry(key, len(memory), stored)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            # What is being read stays mapped until that ends.
            self._kept, self._used = {}, 0

    def _find(self, key: ChunkKey) -> mmap.mmap | bytearray | None:
        with self._lock:
            self._check_open()
            kept = self._kept.get(key)
            return None if kept is None else kept.memory

    def _write(self, key: ChunkKey, frame: memoryview, deadline: Deadline) -> WriteOutcome:
        size = frame.nbytes
        with self._lock:
            self._check_open()
            if deadline.expired:
                return TimedOut()
            former = self._kept.get(key)
            # What is replaced is there until then: by so much the capacity may be exceeded.
            spare = 0 if former is None else len(former.memory)
            if self._used + size - spare > self._capacity:
                return Failed(StoreFull(f"{self._used:,} of {self._capacity:,} bytes are used"))
            self._used += size
        try:
            memory = _filled(frame)
        except BaseException as error:
            with self._lock:
                self._used = max(0, self._used - size)
            if isinstance(error, OSError):
                return Failed(StoreFull(f"the machine has no {size:,} bytes left: {error}"))
            raise
        with self._lock:
            self._check_open()
            former = self._kept.get(key)
            self._kept[key] = _Kept(memory, self._clock.wall())
            self._used -= 0 if former is None else len(former.memory)
        return Stored(size)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the heap store is closed")


def _filled(frame: memoryview) -> mmap.mmap | bytearray:
    """Memory with a copy of *frame*.

    Raises:
        OSError: the system has none.
    """
    if frame.nbytes < PAGE:
        return bytearray(frame)
    memory = mmap.mmap(-1, frame.nbytes, flags=_PRIVATE)
    with suppress(OSError):  # a kernel that has no huge pages, or backs pages at their first use
        advise_huge(memory)
        populate(_address(memory), frame.nbytes)
    _copy(frame, memoryview(memory))
    return memory


def _copy(frame: memoryview, into: memoryview) -> None:
    """Beside the interpreter's lock where both can be addressed: a frame may take milliseconds."""
    if frame.readonly or frame.nbytes < PAGE:
        into[:] = frame
    else:
        ctypes.memmove(_address(into), _address(frame), frame.nbytes)


def _address(buffer: mmap.mmap | memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _is_a_store(
    store: HeapStore,
) -> tuple[ChunkStore, SupportsScan, SupportsRangeRead, SupportsOwnMemory]:
    return store, store, store, store  # mypy checks here that it keeps the ports' promises
