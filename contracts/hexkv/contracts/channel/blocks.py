"""Blocks in one region of memory, whose leases are counted: a pool for tests of channels."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from random import Random
from threading import Lock
from typing import Self

from hexkv.contracts.doubles import FREED, FRESH, chunk_key
from hexkv.ports import (
    KEY_AT,
    KEY_BYTES,
    MAGIC,
    PAGE,
    ChunkKey,
    ChunkSpec,
    Destination,
    Lease,
)


def frame_of(name: str, size: int = 4 * PAGE, *, key: ChunkKey | None = None) -> bytes:
    """A frame of *size* bytes that names the chunk *name*, or *key*, and holds noise.

    Its header is not sealed: channels look at its beginning and at the key.
    """
    noise = Random(name).randbytes(size)  # noqa: S311 - nothing here is secret
    named = chunk_key(name) if key is None else key
    head = MAGIC + noise[len(MAGIC) : KEY_AT] + named
    return head + noise[KEY_AT + KEY_BYTES :]


class Blocks:
    """As many blocks of *size* bytes as *memory* has room for. Safe from any thread.

    A block without leases is poisoned, and is the next one to be leased.
    """

    def __init__(self, memory: memoryview, size: int) -> None:
        self._memory = memory[:]  # a view of its own: a late release must find it
        self.size = size
        self._lock = Lock()
        self._free = list(range(len(memory) // size))
        self._holds: dict[int, int] = {}
        self._owners: Counter[str] = Counter()

    @classmethod
    def on_heap(cls, count: int, size: int) -> Blocks:
        """*count* blocks of *size* bytes in memory of their own."""
        return cls(memoryview(mmap.mmap(-1, count * size)), size)

    def lease(self, owner: str, frame_bytes: int | None = None) -> BlockLease | None:
        """A lease on a free block with a frame of *frame_bytes*; ``None`` if all are leased."""
        size = self.size if frame_bytes is None else frame_bytes
        with self._lock:
            if not self._free or size > self.size:
                return None
            place = self._free.pop()
            self._holds[place] = 1
            self._owners[owner] += 1
        start = place * self.size
        return BlockLease(self, place, owner, self._memory[start : start + size])

    def ledger(self) -> dict[str, int]:
        """The number of leases by owner."""
        with self._lock:
            return {owner: count for owner, count in self._owners.items() if count}

    def _share(self, leases: Sequence[BlockLease], owner: str) -> list[BlockLease]:
        with self._lock:
            for lease in leases:
                if lease._released:
                    raise ValueError(f"the lease of {lease.owner!r} is shared after its release")
            for lease in leases:
                self._holds[lease._place] += 1
            self._owners[owner] += len(leases)
        return [BlockLease(self, lease._place, owner, lease._frame) for lease in leases]

    def _release(self, leases: Sequence[BlockLease]) -> None:
        with self._lock:
            for lease in leases:
                if lease._released:
                    continue
                lease._released = True
                place = lease._place
                self._owners[lease.owner] -= 1
                self._holds[place] -= 1
                if not self._holds[place]:
                    start = place * self.size
                    self._memory[start : start + self.size] = bytes([FREED]) * self.size
                    self._free.append(place)


class BlockLease:
    """A lease on one of some :class:`Blocks`."""

    def __init__(self, blocks: Blocks, place: int, owner: str, frame: memoryview) -> None:
        self._blocks = blocks
        self._place = place
        self._frame = frame
        self._released = False
        self.owner = owner

    spec: ChunkSpec | None = None

    @property
    def frame(self) -> memoryview:
        if self._released:
            raise ValueError(f"the lease of {self.owner!r} is used after its release")
        return self._frame

    @property
    def payload(self) -> memoryview:
        return self.frame[PAGE:]

    @property
    def size(self) -> int:
        return self._blocks.size

    def share(self, owner: str) -> BlockLease:
        return self._blocks._share([self], owner)[0]

    def release(self) -> None:
        self._blocks._release([self])

    @staticmethod
    def share_run(leases: Sequence[BlockLease], owner: str) -> Iterable[BlockLease]:
        """See :class:`hexkv.ports.SupportsRuns`."""
        if len({lease._blocks for lease in leases}) > 1:
            return (lease.share(owner) for lease in leases)
        return leases[0]._blocks._share(leases, owner)

    @staticmethod
    def release_run(leases: Sequence[BlockLease]) -> None:
        """See :class:`hexkv.ports.SupportsRuns`."""
        for blocks in {lease._blocks for lease in leases}:
            blocks._release([lease for lease in leases if lease._blocks is blocks])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class BlockSink:
    """A sink that leases a block for each part.

    Args:
        blocks: to lease.
        refuse: indexes for which there is no room.
        during: called at each call of ``room``, before the lease is returned.
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        refuse: Container[int] = (),
        during: Callable[[], object] = lambda: None,
    ) -> None:
        self._blocks = blocks
        self._refuse = refuse
        self._during = during
        self.leases: dict[int, BlockLease] = {}
        """The newest one for each part."""

        self.fills: list[tuple[int, int]] = []
        """The arguments ``(index, upto)`` of every call of ``filled``, in order."""

    def room(self, index: int, size: int) -> Destination | None:
        self._during()
        if index in self._refuse:
            return None
        old = self.leases.pop(index, None)
        if old is not None:
            old.release()
        lease = self._blocks.lease("sink", size)
        if lease is None:
            return None
        lease.frame[:] = bytes([FRESH]) * size
        self.leases[index] = lease
        return Destination(lease, lease.frame)

    def filled(self, index: int, upto: int) -> None:
        self.fills.append((index, upto))

    def data(self, index: int) -> bytes | None:
        """The bytes of the newest block for *index*; ``None`` if none was leased."""
        lease = self.leases.get(index)
        return None if lease is None else bytes(lease.frame)

    def release(self) -> None:
        """Release every block."""
        leases, self.leases = self.leases, {}
        for lease in leases.values():
            lease.release()


def _is_a_lease(lease: BlockLease) -> Lease:
    return lease  # a type checker checks here that it has the port's methods
