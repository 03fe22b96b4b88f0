"""What is being deleted from a store, so that nobody is told or writes what is about to go."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from hexkv.core.tiers.indexes import Index
from hexkv.ports import ChunkKey


class Deleted:
    """The chunks that were deleted since it was made, or were being deleted then."""

    def __init__(self, keys: Collection[ChunkKey], prefixes: Collection[bytes]) -> None:
        self._keys = set(keys)
        self._prefixes = set(prefixes)

    def add(self, keys: Collection[ChunkKey], prefixes: Collection[bytes]) -> None:
        """These as well, and whatever begins so."""
        self._keys.update(keys)
        self._prefixes.update(prefixes)

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._keys or any(key.startswith(prefix) for prefix in self._prefixes)


class Deleting:
    """The deletions of one tier that are under way. Safe from any thread."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = Lock()
        self._keys: set[ChunkKey] = set()
        self._prefixes: list[bytes] = []
        self._followed: list[Deleted] = []
        self.turn = 0
        """Another one whenever a deletion begins or ends. What a store said of chunks that the
        index does not know counts only while this stays what it was before the question."""

    @contextmanager
    def now(
        self, keys: Sequence[ChunkKey], prefixes: Sequence[bytes] = ()
    ) -> Iterator[Sequence[ChunkKey]]:
        """Those of *keys* that nobody else is deleting, and that nobody has stored anew.

        Nor can anybody until they are gone: a late delete would take what the index has again.
        The store itself deletes whatever begins with one of *prefixes*.
        """
        with self._lock:
            self.turn += 1
            mine = self._index.depart([key for key in keys if key not in self._keys])
            self._keys.update(mine)
            self._prefixes += prefixes
            for deleted in self._followed:
                deleted.add(mine, prefixes)
        try:
            yield mine
        finally:
            with self._lock:
                self.turn += 1
                self._keys.difference_update(mine)
                for prefix in prefixes:
                    self._prefixes.remove(prefix)

    @contextmanager
    def followed(self) -> Iterator[Deleted]:
        """What is deleted meanwhile: a store that is listed may have named it before."""
        with self._lock:
            deleted = Deleted(self._keys, self._prefixes)
            self._followed.append(deleted)
        try:
            yield deleted
        finally:
            with self._lock:
                self._followed.remove(deleted)
