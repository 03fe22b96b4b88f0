"""What is being deleted from a store, so that nobody is told or writes what is about to go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from hexkv.core.tiers.indexes import Index
from hexkv.ports import ChunkKey


class Deleting:
    """The deletions of one tier that are under way. Safe from any thread."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = Lock()
        self._keys: set[ChunkKey] = set()
        self.turn = 0
        """Another one whenever a deletion begins or ends. What a store said of chunks that the
        index does not know counts only while this stays what it was before the question."""

    @contextmanager
    def now(self, keys: Sequence[ChunkKey]) -> Iterator[Sequence[ChunkKey]]:
        """Those of *keys* that nobody else is deleting, and that nobody has stored anew.

        Nor can anybody until they are gone: a late delete would take what the index has again.
        """
        with self._lock:
            self.turn += 1
            mine = self._index.depart([key for key in keys if key not in self._keys])
            self._keys.update(mine)
        try:
            yield mine
        finally:
            with self._lock:
                self.turn += 1
                self._keys.difference_update(mine)
