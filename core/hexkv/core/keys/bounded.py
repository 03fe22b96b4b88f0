"""A set of chunks that is bounded in number."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.ports import ChunkKey


class BoundedKeys:
    """Chunks, of which the oldest are forgotten first. Safe from any thread.

    Args:
        most: the number of chunks.
    """

    __slots__ = ("_keys", "_lock", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: dict[ChunkKey, None] = {}
        self._lock = Lock()

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._keys

    def add(self, keys: Sequence[ChunkKey]) -> None:
        """Remember chunks."""
        with self._lock:
            self._keys.update(dict.fromkeys(keys))
            while len(self._keys) > self._most:
                del self._keys[next(iter(self._keys))]

    def take(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that are remembered, and forget them."""
        if not self._keys:
            return []
        with self._lock:
            mine = [key for key in keys if key in self._keys]
            for key in mine:
                del self._keys[key]
        return mine

    def clear(self) -> None:
        """Forget all chunks."""
        with self._lock:
            self._keys.clear()
