"""Chunks in this process's memory: leases on the pool's blocks, or copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from hexkv.ports import (
    ChunkKey,
    Clock,
    Deadline,
    Entry,
    Hit,
    Item,
    Lease,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreError,
    TimedOut,
    WriteOutcome,
    release_all,
    share_all,
)

_OWNER = "memory store"


class _Copy(NamedTuple):
    """A frame that was written, in memory of the store's own."""

    frame: bytes


class MemoryStore:
    """Keeps leases where it can, copies where it must. One lock, never held during a copy.

    A chunk that was kept can be lent and read; one that was written can only be read: the store's
    own bytes are no block of the pool. The core limits how much it holds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._chunks: dict[ChunkKey, Lease | _Copy] = {}
        self._stored: dict[ChunkKey, float] = {}
        """The time at which each of them was stored."""

        self._closed = False

    def put_lease(self, keys: Sequence[ChunkKey], leases: Sequence[Lease]) -> None:
        new, stored = dict(zip(keys, leases, strict=True)), dict.fromkeys(keys, self._clock.wall())
        with self._lock:
            self._check_open()
            gone: list[Lease | _Copy] = []
            if not self._chunks.keys().isdisjoint(new):
                gone += [self._chunks[key] for key in new if key in self._chunks]
            if len(new) < len(keys):  # of the leases for one key the last one stays
                gone += [it for key, it in zip(keys, leases, strict=True) if new[key] is not it]
            self._chunks.update(new)
            self._stored.update(stored)
        if gone:
            _let_go(gone)

    def get_lease(self, keys: Sequence[ChunkKey], owner: str) -> Sequence[Lease | None]:
        with self._lock:
            self._check_open()
            found = list(map(self._chunks.get, keys))
            if {type(None), _Copy}.isdisjoint(map(type, found)):
                return list(share_all(found, owner))  # type: ignore[arg-type] # all are leases
            held = list(map(_lease, found))
            shares = iter(share_all([lease for lease in held if lease is not None], owner))
            return [None if lease is None else next(shares) for lease in held]

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline
        with self._lock:
            self._check_open()
            return [key in self._chunks for key in keys]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        self._check_open()
        return [self._read(i, key, sink, deadline) for i, key in enumerate(keys)]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        self._check_open()
        outcomes: list[WriteOutcome] = []
        for key, frame in items:
            if deadline.expired:
                outcomes.append(TimedOut())
                continue
            kept, stored = _Copy(bytes(frame)), self._clock.wall()
            with self._lock:
                self._check_open()
                old = self._chunks.get(key)
                self._chunks[key] = kept
                self._stored[key] = stored
            _let_go([old])
            outcomes.append(Stored(frame.nbytes))
        return outcomes

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline
        with self._lock:
            self._check_open()
            gone = [self._chunks.pop(key, None) for key in keys]
            for key in keys:
                self._stored.pop(key, None)
        _let_go(gone)
        return [kept is not None for kept in gone]

    def scan(self) -> Iterator[Entry]:
        with self._lock:
            self._check_open()
            found = [
                Entry(key, len(kept.frame), self._stored.get(key, 0.0))
                for key, kept in self._chunks.items()
            ]
        yield from found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            chunks, self._chunks, self._stored = self._chunks, {}, {}
        _let_go(chunks.values())

    def _read(self, index: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> ReadOutcome:
        if deadline.expired:
            return TimedOut()
        with self._lock:
            kept = self._chunks.get(key)
            if kept is None:
                return Miss()
            # Take a share of our own: the chunk may be deleted while it is copied.
            copy = kept if isinstance(kept, _Copy) else kept.share(_OWNER)
        try:
            size = len(copy.frame)
            room = sink.room(index, size)
            if room is None:
                return Miss(Reason.REFUSED)
            room[:] = copy.frame
            return Hit(size)
        finally:
            if not isinstance(copy, _Copy):
                copy.release()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the memory store is closed")


def _lease(kept: Lease | _Copy | None) -> Lease | None:
    """Return the lease on a block of the pool, if it is one."""
    return None if type(kept) is _Copy else kept  # type: ignore[return-value]


def _let_go(gone: Iterable[Lease | _Copy | None]) -> None:
    """Release leases. Outside the store's lock: the pool has its own."""
    leases = [kept for kept in gone if kept is not None and not isinstance(kept, _Copy)]
    if leases:
        release_all(leases)
