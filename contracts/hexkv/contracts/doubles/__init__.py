"""Test doubles for adapter authors: a clock, a sink, leases, telemetry and events."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Container
from hashlib import sha256
from threading import Lock
from typing import Self

from hexkv.ports import (
    DIGEST_BYTES,
    NAMESPACE_BYTES,
    PAGE,
    CacheEvent,
    ChunkKey,
    ChunkSpec,
    Clock,
    CounterName,
    Deadline,
    HistogramName,
)

FRESH = 0xA5
"""The fill byte of a sink's buffer before a store writes into it."""

FREED = 0xDD
"""The fill byte of a block without leases."""


class ManualClock:
    """A clock that stands still until :meth:`advance`."""

    def __init__(self, now: float = 1_000.0, wall: float = 1_700_000_000.0) -> None:
        self._lock = Lock()
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass on both scales.

        Raises:
            ValueError: time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        with self._lock:
            self._now += seconds
            self._wall += seconds


def deadline(seconds: float = 60.0, clock: Clock | None = None) -> Deadline:
    """A deadline *seconds* from now; without *clock* its time stands still.

    With 0 or less it has already expired.
    """
    return Deadline.after(ManualClock() if clock is None else clock, seconds)


def chunk_key(text: str, namespace: str = "contract") -> ChunkKey:
    """A key of the real size that *text* and *namespace* determine."""
    lead = sha256(namespace.encode()).digest()[:NAMESPACE_BYTES]
    return ChunkKey(lead + sha256(text.encode()).digest()[:DIGEST_BYTES])


class ListSink:
    """A sink that keeps its buffers: poisoned ones between guard bytes.

    Args:
        refuse: indexes for which there is no room.
        offset: distance of each buffer from the nearest page before it; 0 for buffers
            as the pool gives them, 1 for the worst alignment there is.
    """

    def __init__(self, *, refuse: Container[int] = (), offset: int = 0) -> None:
        self._refuse = refuse
        self._offset = offset
        self._given: dict[int, tuple[bytearray, int, int]] = {}
        self.calls: list[tuple[int, int]] = []
        """The arguments ``(index, size)`` of every call of ``room``, in order."""

        self.fills: list[tuple[int, int]] = []
        """The arguments ``(index, upto)`` of every call of ``filled``, in order."""

    def room(self, index: int, size: int) -> memoryview | None:
        self.calls.append((index, size))
        if index in self._refuse:
            return None
        backing = bytearray([FRESH]) * (PAGE + self._offset + size + PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(backing))
        start = -address % PAGE + self._offset
        self._given[index] = (backing, start, size)
        return memoryview(backing)[start : start + size]

    def filled(self, index: int, upto: int) -> None:
        self.fills.append((index, upto))

    def data(self, index: int) -> bytes | None:
        """The bytes of the newest buffer for *index*; ``None`` if none was given."""
        if index not in self._given:
            return None
        backing, start, size = self._given[index]
        return bytes(memoryview(backing)[start : start + size])

    def spilled(self, index: int) -> bool:
        """True if anything was written beside the newest buffer for *index*."""
        backing, start, size = self._given[index]
        return backing.count(FRESH, 0, start) != start or backing.count(FRESH, start + size) != (
            len(backing) - start - size
        )

    def reclaim(self) -> None:
        """Take all the memory back.

        Raises:
            BufferError: a view of it still exists.
        """
        for backing, _, _ in self._given.values():
            backing.clear()


class HeapBlock:
    """One block on the heap and the ledger of its holders, for stores that keep leases.

    Args:
        frame: the block's content; its first page is the header.
        spec: of the chunk in the block.
        payload_bytes: length of the payload, if the frame is padded behind it.
        size: bytes of the block, if larger than the frame.
        readonly: True for views that cannot be written, as of another process's memory.
    """

    def __init__(
        self,
        frame: bytes,
        spec: ChunkSpec | None = None,
        *,
        payload_bytes: int | None = None,
        size: int = 0,
        readonly: bool = False,
    ) -> None:
        self.frame_bytes = len(frame)
        self.payload_bytes = len(frame) - PAGE if payload_bytes is None else payload_bytes
        self.readonly = readonly
        self.memory = bytearray(frame) + bytes(max(0, size - len(frame)))
        self.spec = spec
        self._lock = Lock()
        self._holds: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """The number of leases held on the block; 0 at rest."""
        return self._holds.total()

    @property
    def owners(self) -> dict[str, int]:
        """The number of leases by owner."""
        with self._lock:
            return {owner: count for owner, count in self._holds.items() if count}

    def lease(self, owner: str = "test") -> HeapLease:
        """A new lease on the block, as the pool gives it; others are shared from it."""
        return HeapLease(self, owner)

    def sweep(self, owner: str) -> None:
        """Drop all leases of *owner*, which is gone."""
        for _ in range(self.owners.get(owner, 0)):
            self._drop(owner)

    def _take(self, owner: str, *, first: bool) -> None:
        with self._lock:
            if not first and not self.held:
                raise ValueError(f"{owner!r} shares a block that has no holder")
            self._holds[owner] += 1

    def _drop(self, owner: str) -> None:
        with self._lock:
            self._holds[owner] -= 1
            if not self.held:
                self.memory[:] = bytes([FREED]) * len(self.memory)


class HeapLease:
    """A lease on a :class:`HeapBlock`. Releasing the last one poisons the memory."""

    def __init__(self, block: HeapBlock, owner: str, *, shared: bool = False) -> None:
        block._take(owner, first=not shared)
        self._block = block
        self._lock = Lock()
        self.owner = owner
        self.released = False

    @property
    def frame(self) -> memoryview:
        if self.released:
            raise ValueError(f"the lease of {self.owner!r} is used after its release")
        view = memoryview(self._block.memory)[: self._block.frame_bytes]
        return view.toreadonly() if self._block.readonly else view

    @property
    def payload(self) -> memoryview:
        return self.frame[PAGE : PAGE + self._block.payload_bytes]

    @property
    def spec(self) -> ChunkSpec | None:
        return self._block.spec

    @property
    def size(self) -> int:
        return len(self._block.memory)

    def share(self, owner: str) -> HeapLease:
        if self.released:
            raise ValueError(f"the lease of {self.owner!r} is shared after its release")
        return HeapLease(self._block, owner, shared=True)

    def release(self) -> None:
        with self._lock:
            if self.released:
                return
            self.released = True
        self._block._drop(self.owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class RecordingTelemetry:
    """Keeps every total and every duration reported."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts: Counter[tuple[CounterName, str, str]] = Counter()
        """Totals by counter, tier and reason."""
        self.durations: list[tuple[HistogramName, str, float]] = []

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        with self._lock:
            self.counts[counter, tier, reason] += amount

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        with self._lock:
            self.durations.append((histogram, tier, seconds))

    def total(self, counter: CounterName, *, tier: str | None = None) -> int:
        """The sum over all reasons, of one *tier* or of all."""
        with self._lock:
            return sum(
                amount
                for (name, where, _), amount in self.counts.items()
                if name == counter and tier in (None, where)
            )


class RecordingEvents:
    """Keeps every event, in order."""

    def __init__(self) -> None:
        self.events: list[CacheEvent] = []

    def emit(self, event: CacheEvent) -> None:
        self.events.append(event)
