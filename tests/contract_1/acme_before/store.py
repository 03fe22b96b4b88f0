"""A dictionary as a store. Put your service in its place."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import Lock

from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Entry,
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

Medium = dict[ChunkKey, tuple[bytes, float]]
"""Frames, and when they were stored."""


class AcmeStore:
    """A ChunkStore that can also list what it holds, so that hexkv can keep a budget.

    Args:
        medium: where frames lie; a new one of the store's own if there is none.
    """

    def __init__(self, medium: Medium | None = None) -> None:
        self._medium: Medium = {} if medium is None else medium
        self._lock = Lock()
        self._closed = False

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline  # nothing here waits
        self._check_open()
        return [key in self._medium for key in keys]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        self._check_open()
        return [self._read(index, key, sink, deadline) for index, key in enumerate(keys)]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        self._check_open()
        return [self._write(item, deadline) for item in items]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline  # likewise
        self._check_open()
        with self._lock:
            return [self._medium.pop(key, None) is not None for key in keys]

    def scan(self) -> Iterator[Entry]:
        self._check_open()
        for key, (frame, stored) in list(self._medium.items()):
            if key in self._medium:  # it may have been deleted meanwhile
                yield Entry(key, len(frame), stored)

    def close(self) -> None:
        self._closed = True

    def _read(self, index: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> ReadOutcome:
        if deadline.expired:
            return TimedOut()
        found = self._medium.get(key)
        if found is None:
            return Miss()
        frame, _ = found
        room = sink.room(index, len(frame))
        if room is None:
            return Miss(Reason.REFUSED)
        room[:] = frame
        return Hit(len(frame))

    def _write(self, item: Item, deadline: Deadline) -> WriteOutcome:
        if deadline.expired:
            return TimedOut()
        frame = bytes(item.frame)  # the buffer is the caller's again when this returns
        with self._lock:
            self._medium[item.key] = frame, time.time()
        return Stored(len(frame))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store was closed")


def _is_a_store(store: AcmeStore) -> ChunkStore:
    return store  # a type checker checks here that AcmeStore has the port's methods
