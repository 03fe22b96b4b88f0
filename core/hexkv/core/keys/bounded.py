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

    __slots__ = ("_lock", "_most", "keys")

    def __init__(self, most: int) -> None:
        self._most = most
        self.keys: dict[ChunkKey, None] = {}
        """The chunks, the oldest first. If it is empty, no call is needed."""

        self._lock = Lock()

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self.keys

    def add(self, keys: Sequence[ChunkKey]) -> None:
        """Remember chunks."""
        with self._lock:
            self.keys.update(dict.fromkeys(keys))
            while len(self.keys) > self._most:
                del self.keys[next(iter(self.keys))]

    def take(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that are remembered, and forget them."""
        with self._lock:
            mine = [key for key in keys if key in self.keys]
            for key in mine:
                del self.keys[key]
        return mine

    def clear(self) -> None:
        """Forget all chunks."""
        with self._lock:
            self.keys.clear()
