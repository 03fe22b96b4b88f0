"""The backlog of a tier: chunks that it should hold, and that could not be written to it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.ports import ChunkKey

_MOST = 4096
"""Chunks that are remembered; the oldest are forgotten first."""


class Backlog:
    """Which chunks to write again when there is a reason to. Safe from any thread."""

    __slots__ = ("_keys", "_lock")

    def __init__(self) -> None:
        self._keys: dict[ChunkKey, None] = {}
        self._lock = Lock()

    def add(self, keys: Sequence[ChunkKey]) -> None:
        """Remember chunks that could not be written."""
        with self._lock:
            self._keys.update(dict.fromkeys(keys))
            while len(self._keys) > _MOST:
                del self._keys[next(iter(self._keys))]

    def take(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Those of *keys* that are remembered; from now on they are not."""
        if not self._keys:
            return []
        with self._lock:
            mine = [key for key in keys if key in self._keys]
            for key in mine:
                del self._keys[key]
        return mine
