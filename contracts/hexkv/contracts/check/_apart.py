"""A store that isolates its keys on a service that others use."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from hexkv.contracts.doubles import deadline
from hexkv.plugins.spec import BackDoor
from hexkv.ports import (
    NAMESPACE_BYTES,
    ChunkKey,
    ChunkStore,
    Deadline,
    Entry,
    Item,
    ReadOutcome,
    Sink,
    SupportsRangeRead,
    SupportsScan,
    WriteOutcome,
)


class Salt:
    """Maps keys to a random namespace, and records the keys used."""

    def __init__(self) -> None:
        self._salt = int.from_bytes(secrets.token_bytes(NAMESPACE_BYTES))
        self.used: set[ChunkKey] = set()

    def __call__(self, key: ChunkKey) -> ChunkKey:
        """Map *key* to this namespace, or back from it: the mapping is its own inverse."""
        lead = self._salt ^ int.from_bytes(key[:NAMESPACE_BYTES])
        return ChunkKey(lead.to_bytes(NAMESPACE_BYTES) + key[NAMESPACE_BYTES:])


class Isolated:
    """A store that maps every key, so that it never sees or changes chunks of others.

    :func:`sweep` deletes its chunks. The subclasses below add the listing and the range reading
    of the store inside.
    """

    def __init__(self, store: ChunkStore, salt: Salt) -> None:
        self.inner = store
        self.salt = salt
        self.closed = False

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self.inner.contains([*map(self.salt, keys)], deadline)

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return self.inner.read([*map(self.salt, keys)], sink, deadline)

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        moved = [Item(self.salt(item.key), item.frame) for item in items]
        self.salt.used.update(item.key for item in moved)
        return self.inner.write(moved, deadline)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self.inner.delete([*map(self.salt, keys)], deadline)

    def close(self) -> None:
        self.closed = True
        self.inner.close()


class _Lists(Isolated):
    inner: SupportsScan  # type: ignore[assignment]

    def scan(self) -> Iterator[Entry]:
        for entry in self.inner.scan():
            if entry.key in self.salt.used:
                yield entry._replace(key=self.salt(entry.key))


class _ReadsRanges(Isolated):
    inner: SupportsRangeRead  # type: ignore[assignment]

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        return self.inner.read_range(self.salt(key), start, into, deadline)


class _Both(_Lists, _ReadsRanges):
    inner: SupportsScan  # type: ignore[assignment]


class RawApart:
    """The back door to the chunks of such a store, and to no others."""

    def __init__(self, door: BackDoor, salt: Salt) -> None:
        self._door = door
        self._salt = salt

    def get(self, key: ChunkKey) -> bytes | None:
        return self._door.get(self._salt(key))

    def put(self, key: ChunkKey, frame: bytes) -> None:
        moved = self._salt(key)
        self._salt.used.add(moved)
        self._door.put(moved, frame)

    def keys(self) -> set[ChunkKey]:
        # One by one: not every medium can be listed.
        return {self._salt(key) for key in self._salt.used if self._door.get(key) is not None}


def apart(store: ChunkStore, salt: Salt) -> Isolated:
    """Isolate *store* among others' chunks; it can list and read ranges if *store* can."""
    match isinstance(store, SupportsScan), isinstance(store, SupportsRangeRead):
        case True, True:
            return _Both(store, salt)
        case True, False:
            return _Lists(store, salt)
        case False, True:
            return _ReadsRanges(store, salt)
    return Isolated(store, salt)


def sweep(store: ChunkStore, keys: Sequence[ChunkKey]) -> None:
    """Delete *keys* from a service that others use."""
    for start in range(0, len(keys), 1000):
        store.delete(keys[start : start + 1000], deadline())
