"""The backlog of a tier: chunks that it should hold but could not be written to it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.ports import ChunkKey

_MOST = 4096
"""The most chunks remembered; the oldest are forgotten first."""


class Backlog:
    """Chunks to write again at the next opportunity. Safe from any thread."""

    __slots__ = ("_keys", "_lock")

    def __init__(self) -> None:
        self._keys: dict[ChunkKey, None] = {}
        self._lock = Lock()

    def add(self, keys: Sequence[ChunkKey]) -> None:
        """Remember chunks whose write failed."""
        with self._lock:
            self._keys.update(dict.fromkeys(keys))
            while len(self._keys) > _MOST:
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
