"""A store in memory of its own: the reference for memory that the core did not make.

A daemon's shared memory, or a device's, is a tier like any other: it copies the chunks that it
keeps, and lends leases of its own class. This store does so on the heap. It counts its leases by
owner, and poisons the memory of a chunk at the release of its last lease, so that a use after
release, or a missing release, is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from hexkv.contracts.doubles import HeapBlock, HeapLease
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
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
    SupportsOwnMemory,
    SupportsScan,
    SupportsZeroCopy,
    TimedOut,
    WriteOutcome,
    release_all,
)

OWNER = "own memory"
"""The owner name of the store's own leases."""


class _Kept(NamedTuple):
    lease: HeapLease
    lends: bool
    """False for chunks written as bytes, which are not lent: the store does not know their spec."""

    stored: float


class OwnMemoryStore:
    """Copies the chunks that it keeps, and lends leases on the copies.

    Args:
        clock: for the time at which a chunk was stored.
        rounding: memory is allocated in multiples of this, as huge pages are.
        readonly: True if the memory of leases is read-only.
    """

    own_memory = True

    def __init__(self, clock: Clock, *, rounding: int = 1, readonly: bool = False) -> None:
        self._clock = clock
        self._rounding = rounding
        self._readonly = readonly
        self._chunks: dict[ChunkKey, _Kept] = {}
        self._blocks: list[HeapBlock] = []
        self._closed = False
        self._lock = Lock()

    @property
    def used(self) -> int:
        """Bytes of memory that chunks take, including those held only by borrowers."""
        with self._lock:
            return sum(len(block.memory) for block in self._live())

    def ledger(self) -> Mapping[str, int]:
        """The number of leases by owner; :data:`OWNER` has one for each chunk."""
        owners: Counter[str] = Counter()
        with self._lock:
            for block in self._live():
                owners.update(block.owners)
        return dict(owners)

    def put_lease(self, keys: Sequence[ChunkKey], leases: Sequence[Lease]) -> None:
        with self._lock:
            self._check_open()
        for key, lease in zip(keys, leases, strict=True):
            size = -(-len(lease.frame) // self._rounding) * self._rounding
            block = HeapBlock(
                bytes(lease.frame),
                lease.spec,
                payload_bytes=len(lease.payload),
                size=size,
                readonly=self._readonly,
            )
            self._put(key, block, lends=True)
        release_all(leases)

    def get_lease(self, keys: Sequence[ChunkKey], owner: str) -> Sequence[Lease | None]:
        with self._lock:
            self._check_open()
            found = [self._chunks.get(key) for key in keys]
            return [kept.lease.share(owner) if kept and kept.lends else None for kept in found]

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline
        with self._lock:
            self._check_open()
            return [key in self._chunks for key in keys]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return [self._read(i, key, sink, deadline) for i, key in enumerate(keys)]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        outcomes: list[WriteOutcome] = []
        for key, frame in items:
            if deadline.expired:
                outcomes.append(TimedOut())
                continue
            self._put(key, HeapBlock(bytes(frame)), lends=False)
            outcomes.append(Stored(len(frame)))
        return outcomes

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline
        with self._lock:
            self._check_open()
            gone = [self._chunks.pop(key, None) for key in keys]
            for kept in filter(None, gone):
                kept.lease.release()
        return [kept is not None for kept in gone]

    def scan(self) -> Iterator[Entry]:
        with self._lock:
            self._check_open()
            chunks = self._chunks.items()
            found = [Entry(key, len(kept.lease.frame), kept.stored) for key, kept in chunks]
        return iter(found)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            chunks, self._chunks = self._chunks, {}
            for kept in chunks.values():
                kept.lease.release()

    def _read(self, index: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> ReadOutcome:
        with self._lock:
            self._check_open()
            if deadline.expired:
                return TimedOut()
            kept = self._chunks.get(key)
            if kept is None:
                return Miss()
            own = kept.lease.share(OWNER)  # it may be deleted while it is copied
        with own:
            room = sink.room(index, len(own.frame))
            if room is None:
                return Miss(Reason.REFUSED)
            room[:] = own.frame
            return Hit(len(own.frame))

    def _put(self, key: ChunkKey, block: HeapBlock, *, lends: bool) -> None:
        with self._lock:
            self._check_open()
            self._blocks = [*self._live(), block]
            former = self._chunks.get(key)
            self._chunks[key] = _Kept(block.lease(OWNER), lends, self._clock.wall())
            if former is not None:
                former.lease.release()

    def _live(self) -> list[HeapBlock]:
        return [block for block in self._blocks if block.held]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


if TYPE_CHECKING:

    def _is_a_store(
        store: OwnMemoryStore,
    ) -> tuple[ChunkStore, SupportsScan, SupportsZeroCopy, SupportsOwnMemory]:
        return store, store, store, store
