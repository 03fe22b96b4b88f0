"""Frames in this process's memory beside the pool, each of its own size: compressed memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from hexkv.adapters.local._frame_file import Extent, FrameMemory
from hexkv.plugins.support.available import available_bytes
from hexkv.plugins.support.mapped import advise_huge, populate
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkStore,
    Clock,
    Deadline,
    Entry,
    Failed,
    FrameFile,
    Hit,
    Item,
    Miss,
    PlacedFrame,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    SupportsHandOver,
    SupportsOwnMemory,
    SupportsRangeRead,
    SupportsScan,
    TimedOut,
    WriteOutcome,
)

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_NO_ROOM = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors for no memory left, or for a limit of files that is reached."""


_Memory = mmap.mmap | bytearray | Extent


class _Kept(NamedTuple):
    memory: _Memory
    stored: float


class HeapStore:
    """Keeps copies of frames in separate mappings, whose memory returns to the system at once.

    The pool's blocks are of one size, so an encoded frame that takes more than half of one takes
    all of it there. Here it takes only the pages that it needs. A frame is copied in and out beside
    the interpreter's lock, by the tier's workers, which also encode and decode.

    Args:
        clock: of the times that :meth:`scan` gives.
        capacity: bytes of all frames; by default a quarter of the machine's available memory.
        passes_on: keep frames where another process can take them over (Linux). They are copied by
            system calls there, in pages that are not huge, which takes three times as long.
        inherited: the memory that such a store has passed on; then this store is one, too, and
            takes no write before :meth:`thaw`.

    Raises:
        StoreFull: the machine does not have *capacity* bytes.
    """

    def __init__(
        self,
        clock: Clock,
        capacity: int | None = None,
        *,
        passes_on: bool = False,
        inherited: FrameFile | None = None,
    ) -> None:
        available = available_bytes()
        if inherited is not None:
            available += sum(frame.size for frame in inherited.frames)
        if capacity is not None and capacity > available:
            raise StoreFull(f"{capacity:,} bytes of memory are wanted, {available:,} are available")
        self._capacity = available // 4 if capacity is None else capacity
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[ChunkKey, _Kept] = {}
        self._used = 0
        self._closed = False
        self._frozen = self._adopting = inherited is not None
        self._file: FrameMemory | None = None
        if inherited is not None:
            self._file = FrameMemory(inherited.descriptor, inherited.end)
            self._adopt(self._file, inherited.frames)
        elif passes_on and hasattr(os, "memfd_create"):
            self._file = FrameMemory()

    def _adopt(self, file: FrameMemory, frames: Sequence[PlacedFrame]) -> None:
        file.freeze({frame.offset for frame in frames})
        # Each gets a time one second after the last, so that they are indexed in this order.
        for number, frame in enumerate(frames):
            if frame.key not in self._kept:  # a second extent in its place would free the pages
                extent = Extent(file, frame.offset, frame.size)
                self._kept[frame.key] = _Kept(extent, float(number))
        self._used = sum(len(kept.memory) for kept in self._kept.values())

    @property
    def own_memory(self) -> bool:
        return True

    def limit(self, size: int) -> None:
        with self._lock:
            more = size - max(self._capacity, self._used)
            available = available_bytes() if more > 0 else 0
            if more > available:
                raise StoreFull(f"{more:,} bytes more are wanted, {available:,} are available")
            self._capacity = size

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
                outcomes.append(_read(memory, 0, room))
        return outcomes

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        memory = self._find(key)
        if deadline.expired:
            return TimedOut()
        if memory is None or start + len(into) > len(memory):
            return Miss()
        outcome = _read(memory, start, into)
        return replace(outcome, whole=len(memory)) if isinstance(outcome, Hit) else outcome

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
            # Memory that is being read stays there until the read ends.
            kept, self._kept, self._used = self._kept, {}, 0
            extents = [one.memory for one in kept.values() if isinstance(one.memory, Extent)]
            if self._file is not None and not self._frozen:
                # Closing the descriptor frees all of it, which is faster than piece by piece.
                self._file.freeze({extent.start for extent in extents})
            self._file = None

    def hand_over(self, keys: Sequence[ChunkKey]) -> FrameFile | None:
        with self._lock:
            self._check_open()
            if self._file is None:
                return None
            self._frozen = True
            frames = [
                PlacedFrame(key, kept.memory.start, len(kept.memory))
                for key in dict.fromkeys(keys)
                if (kept := self._kept.get(key)) is not None and isinstance(kept.memory, Extent)
            ]
            self._file.freeze({frame.offset for frame in frames})
            return FrameFile(self._file.descriptor, self._file.end, frames)

    def thaw(self) -> None:
        with self._lock:
            kept = [one.memory for one in self._kept.values() if isinstance(one.memory, Extent)]
            file, self._frozen = self._file, False
            adopted, self._adopting = self._adopting, False
            if file is not None:
                # No write before this ends: the extent that it reserves is not kept yet.
                file.thaw(kept if adopted else None)

    def _find(self, key: ChunkKey) -> _Memory | None:
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
            if self._frozen:
                return Failed(StoreError("the heap store is being handed over"))
            former = self._kept.get(key)
            # The replaced frame is there until then: the capacity may be exceeded by its size.
            spare = 0 if former is None else len(former.memory)
            if self._used + size - spare > self._capacity:
                return Failed(StoreFull(f"{self._used:,} of {self._capacity:,} bytes are used"))
            self._used += size
            extent = None if self._file is None else self._file.reserve(size)
        try:
            memory = _filled(frame) if extent is None else extent.fill(frame)
        except BaseException as error:
            with self._lock:
                self._used = max(0, self._used - size)
            if not isinstance(error, OSError):
                raise
            if error.errno in _NO_ROOM:
                return Failed(StoreFull(f"the machine has no {size:,} bytes left: {error}"))
            return Failed(StoreUnreachable(f"memory that cannot be written: {error}"))
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
    """Return memory with a copy of *frame*.

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


def _read(memory: _Memory, start: int, into: memoryview) -> ReadOutcome:
    """Fill *into* with a frame's bytes from *start* on."""
    if isinstance(memory, Extent):
        if not memory.copy(start, into):
            return Failed(StoreError("the memory that was handed over has no such frame"))
    else:
        _copy(memoryview(memory)[start : start + len(into)], into)
    return Hit(len(into))


def _copy(frame: memoryview, into: memoryview) -> None:
    """Copy beside the interpreter's lock if both have an address: a frame may take milliseconds."""
    if frame.readonly or frame.nbytes < PAGE:
        into[:] = frame
    else:
        ctypes.memmove(_address(into), _address(frame), frame.nbytes)


def _address(buffer: mmap.mmap | memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _is_a_store(
    store: HeapStore,
) -> tuple[ChunkStore, SupportsScan, SupportsRangeRead, SupportsOwnMemory, SupportsHandOver]:
    return store, store, store, store, store  # mypy checks here that it keeps the ports' promises
