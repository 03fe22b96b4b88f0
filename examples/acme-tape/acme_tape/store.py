"""A dictionary that plays a tape: the smallest store that keeps every promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from hexkv.ports import (
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
    TimedOut,
    WriteOutcome,
)


class Recording(NamedTuple):
    """A frame on the tape."""

    frame: bytes
    stored: float


class TapeStore:
    """A ChunkStore that can also list what it holds, so that a budget can be kept."""

    def __init__(self, tape: dict[ChunkKey, Recording], length: int, clock: Clock) -> None:
        self._tape = tape
        self._free = length - sum(len(recording.frame) for recording in tape.values())
        self._clock = clock
        self._lock = Lock()
        self._closed = False

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline  # nothing here waits
        self._check_open()
        return [key in self._tape for key in keys]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        self._check_open()
        return [self._read(index, key, sink, deadline) for index, key in enumerate(keys)]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        self._check_open()
        return [self._write(item, deadline) for item in items]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline  # nothing here waits
        self._check_open()
        return [self._erase(key) for key in keys]

    def scan(self) -> Iterator[Entry]:
        self._check_open()
        for key, (frame, stored) in list(self._tape.items()):
            if key in self._tape:
                yield Entry(key, len(frame), stored)

    def close(self) -> None:
        self._closed = True

    def _read(self, index: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> ReadOutcome:
        if deadline.expired:
            return TimedOut()
        recording = self._tape.get(key)
        if recording is None:
            return Miss()
        room = sink.room(index, len(recording.frame))
        if room is None:
            return Miss(Reason.REFUSED)
        room[:] = recording.frame
        return Hit(len(recording.frame))

    def _write(self, item: Item, deadline: Deadline) -> WriteOutcome:
        if deadline.expired:
            return TimedOut()
        frame = bytes(item.frame)  # the buffer is the caller's again when this returns
        with self._lock:
            former = self._tape.get(item.key)
            free = self._free + (len(former.frame) if former else 0)
            if len(frame) > free:
                return Failed(StoreFull(f"{free} bytes of tape are left, not {len(frame)}"))
            self._free = free - len(frame)
            self._tape[item.key] = Recording(frame, self._clock.wall())
        return Stored(len(frame))

    def _erase(self, key: ChunkKey) -> bool:
        with self._lock:
            former = self._tape.pop(key, None)
            if former is None:
                return False
            self._free += len(former.frame)
            return True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the tape was taken out")


def _is_a_store(store: TapeStore) -> ChunkStore:
    return store  # mypy checks here that TapeStore keeps the port's promises
