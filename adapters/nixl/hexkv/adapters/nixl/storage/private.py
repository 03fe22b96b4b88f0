"""Objects of one process, which knows its chunks because no other process writes them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from threading import Lock

from hexkv.adapters.nixl.storage.mover import Mover
from hexkv.adapters.nixl.storage.objects import NixlObjectStore
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Clock,
    Deadline,
    Entry,
    Failed,
    SharedMedium,
    Stored,
    StoreFull,
    SupportsRangeRead,
    SupportsScan,
    WriteOutcome,
)


class NixlPrivateObjects(NixlObjectStore):
    """Chunks in an object store under a random word, all of them written by this store.

    So their sizes are known, a budget holds, and a namespace can be cleared. They cannot be found
    once this is closed: a lifecycle rule of the bucket removes them. Safe from any thread.

    Args:
        mover: with the plug-in; closed with this.
        prefix: of every object's name, in front of the word.
        clock: for the times that :meth:`scan` returns.
        capacity: the most bytes of all frames; ``None``: unlimited.
    """

    def __init__(self, mover: Mover, prefix: str, clock: Clock, capacity: int | None) -> None:
        super().__init__(mover, f"{prefix}{secrets.token_hex(8)}/")
        self._clock = clock
        self._capacity = capacity
        self._entries: dict[ChunkKey, Entry] = {}
        self._used = 0
        self._counting = Lock()

    @property
    def shared(self) -> bool:
        """False: no other process knows the word."""
        return False

    def limit(self, size: int) -> None:
        self._capacity = size

    @property
    def used_bytes(self) -> int:
        """Bytes of frames that exist, or may exist."""
        return self._used

    def scan(self) -> Iterator[Entry]:
        with self._counting:
            entries = list(self._entries.values())
        return iter(entries)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        gone = super().delete(keys, deadline)
        with self._counting:
            for key in keys:
                self._count(key, 0)
        return gone

    def close(self) -> None:
        super().close()
        with self._counting:
            self._entries, self._used = {}, 0

    def _write(self, key: ChunkKey, frame: memoryview, deadline: Deadline) -> WriteOutcome:
        # Counted before the write, even if it fails: a write that was given up may end later.
        if not self._counted(key, frame.nbytes):
            return Failed(StoreFull(f"{self._used:,} of {self._capacity:,} bytes are used"))
        outcome = super()._write(key, frame, deadline)
        if isinstance(outcome, Stored):
            with self._counting:
                self._count(key, frame.nbytes, listed=True)
        return outcome

    def _counted(self, key: ChunkKey, size: int) -> bool:
        """Count a frame before it is written; return False if there is no room for it."""
        with self._counting:
            former = self._entries.get(key)
            spare = 0 if former is None else former.size
            if self._capacity is not None and self._used + size - spare > self._capacity:
                return False
            # The former frame exists until it is replaced, and may stay: count the longer of both.
            self._count(key, max(size, spare), listed=True)
            return True

    def _count(self, key: ChunkKey, size: int, *, listed: bool = False) -> None:
        former = self._entries.pop(key, None)
        self._used += size - (0 if former is None else former.size)
        if listed:
            self._entries[key] = Entry(key, size, self._clock.wall())


def _is_a_store(
    store: NixlPrivateObjects,
) -> tuple[ChunkStore, SupportsRangeRead, SharedMedium, SupportsScan]:
    return store, store, store, store  # mypy checks here that it keeps the ports' promises
