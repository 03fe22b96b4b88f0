"""Values in a directory, through the store ``disk``: they outlive the server."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from types import TracebackType
from typing import Protocol, Self

from hexkv.adapters.lmserver._arena import Arena, Block
from hexkv.adapters.lmserver._shelf import Listing, Loan, NoRoom, Shelf, Value
from hexkv.adapters.lmserver.wire import Verdict
from hexkv.plugins.indexing import TierIndex
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
    Reason,
    Stored,
    StoreError,
    SupportsRangeRead,
    SupportsScan,
    WriteOutcome,
)

_PATIENCE = 30.0
"""Seconds that the directory has for one call."""

_LEAST = 4096
"""Bytes that a file takes at least, so that empty ones have an end, too."""


class Directory(ChunkStore, SupportsScan, SupportsRangeRead, Protocol):
    """What a directory must be able to do."""


class DiskShelf:
    """Values as files of a disk store that nobody else uses. The page cache makes them fast.

    Args:
        store: the directory, and from now on the shelf's.
        arena: values pass through it, contiguous.
        index: counts the files' bytes.
        clock: for deadlines, and for when a value was stored.
    """

    def __init__(self, store: Directory, arena: Arena, index: TierIndex, clock: Clock) -> None:
        self._store = store
        self._arena = arena
        self._index = index
        self._clock = clock
        self._lock = Lock()
        """Held while files change, so that index and files agree. Readers need none."""
        self._undeleted: list[ChunkKey] = []
        self._entries = {entry.key: entry for entry in store.scan()}
        self._listing = Listing()
        for key in self._entries:
            self._listing.of(key).add(key)
        with self._lock:
            found = [it._replace(size=max(it.size, _LEAST)) for it in self._entries.values()]
            self._forget(index.restore(found))

    def take(self, size: int, patience: float) -> Block | None:
        return self._arena.take(size, patience, whole=True)

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        return [key in self._entries for key in keys]

    def borrow(
        self, key: ChunkKey, start: int = 0, size: int | None = None, *, patience: float
    ) -> Loan | None:
        with _Room(self._arena, patience) as room:
            if key not in self._entries:
                return None
            if size is None:
                # Only the open file knows how large it is: another may be taking its place.
                (outcome,) = self._store.read([key], room, self._deadline())
            else:
                into = room.room(0, size)
                if into is None:
                    raise NoRoom
                outcome = self._store.read_range(key, start, into, self._deadline())
            if isinstance(outcome, Failed):
                raise StoreError("the directory cannot be read") from outcome.error
            if isinstance(outcome, Hit):
                return room.loan()
            if outcome == Miss(Reason.REFUSED):
                raise NoRoom
            return None

    def put(self, values: Sequence[Value]) -> list[Verdict]:
        last = {value.key: value.block for value in values}
        sizes = [max(block.size, _LEAST) for block in last.values()]
        verdicts = dict.fromkeys(last, Verdict.FULL)
        with self._lock:
            reservation = self._index.reserve(list(last), sizes)
            self._forget(reservation.victims)
            old = {}
            for key, size in zip(last, sizes, strict=True):
                if key not in reservation.keys and key not in reservation.refused:
                    before = self._index.size(key)
                    victims = self._index.resize(key, max(size, before or 0))
                    if victims is not None:
                        self._forget(victims)
                        old[key] = before or 0
                        for victim in victims:
                            old.pop(victim, None)
            writable = [key for key in last if key in old or key in reservation.keys]
            views = [last[key].views for key in writable]
            items = [
                Item(key, view[0] if view else memoryview(b""))
                for key, view in zip(writable, views, strict=True)
            ]
            outcomes = dict(zip(writable, self._write(items), strict=True))
            for key, outcome in outcomes.items():
                stored = isinstance(outcome, Stored)
                verdicts[key] = Verdict.STORED if stored else Verdict.FAILED
                if key in old:
                    self._index.resize(key, max(last[key].size, _LEAST) if stored else old[key])
                if stored:
                    self._entries[key] = Entry(key, last[key].size, self._clock.wall())
                    self._listing.of(key).add(key)
            stored_keys = {key for key, verdict in verdicts.items() if verdict == Verdict.STORED}
            self._index.commit([key for key in reservation.keys if key in stored_keys])
            self._index.abort([key for key in reservation.keys if key not in stored_keys])
        return [verdicts[value.key] for value in values]

    def delete(self, keys: Sequence[ChunkKey]) -> list[bool]:
        there = []
        with self._lock:
            for key in keys:
                there.append(key in self._entries)
                self._forget(self._index.discard([key]))
        return there

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        self._index.touch(keys)

    def list(self, after: ChunkKey, most: int, *, historic: bool = False) -> list[Entry]:
        with self._lock:
            found = self._listing.after(after, most, historic=historic)
            return [self._entries[key] for key in found]

    def close(self) -> None:
        self._store.close()

    def _write(self, items: Sequence[Item]) -> Sequence[WriteOutcome]:
        try:
            return self._store.write(items, self._deadline())
        except StoreError as error:
            return [Failed(error)] * len(items)

    def _forget(self, keys: Sequence[ChunkKey]) -> None:
        if not keys:
            return
        for key in keys:
            self._entries.pop(key, None)
            self._listing.of(key).discard(key)
        # What cannot be deleted still takes room, and is tried again with the next ones.
        self._undeleted.extend(keys)
        try:
            self._store.delete(self._undeleted, self._deadline())
        except StoreError:
            return
        self._index.deleted(self._undeleted)
        self._undeleted = []

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clock, _PATIENCE)


class _Room:
    """A sink of one contiguous block."""

    def __init__(self, arena: Arena, patience: float) -> None:
        self._arena = arena
        self._patience = patience
        self._block: Block | None = None

    def room(self, index: int, size: int) -> memoryview | None:
        del index
        self._release()
        self._block = self._arena.take(size, self._patience, whole=True)
        if self._block is None:
            return None
        return self._block.views[0] if size else memoryview(bytearray())

    def loan(self) -> Loan | None:
        """What was read, for whoever asked; it outlives this sink."""
        block = self._block
        return None if block is None else Loan(block.share(), list(block.views))

    def _release(self) -> None:
        if self._block is not None:
            self._block.release()
            self._block = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()


def _keeps_the_protocol(shelf: DiskShelf) -> Shelf:
    return shelf  # mypy checks here that it keeps the protocol's promises
