"""How many bytes a store holds, exactly, and how many more it may take."""

from __future__ import annotations

from threading import Lock

from hexkv.ports import ChunkKey, StoreFull


class ByteLedger:
    """Sizes of the chunks on disk, and reservations for those being written."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._sizes: dict[ChunkKey, int] = {}
        self._used = 0
        self._reserved = 0

    @property
    def used(self) -> int:
        """Bytes of the chunks that are there, without those being written."""
        return self._used

    def reserve(self, key: ChunkKey, size: int) -> None:
        """Make sure that *size* bytes may be written under *key*.

        The chunk in whose place they come does not count. Whatever else is being written
        counts in full, so the total stays within the capacity in whatever order they end.

        Raises:
            StoreFull: they would exceed the capacity. Nothing is reserved.
        """
        with self._lock:
            total = self._used - self._sizes.get(key, 0) + self._reserved + size
            if self._capacity is not None and total > self._capacity:
                raise StoreFull(
                    f"{size} bytes do not fit: {self._used} are stored and {self._reserved} "
                    f"are being written, of {self._capacity}"
                )
            self._reserved += size

    def cancel(self, size: int) -> None:
        """Give a reservation back."""
        with self._lock:
            self._reserved -= size

    def settle(self, key: ChunkKey, size: int) -> None:
        """The reserved bytes are stored under *key*, in place of what was there."""
        with self._lock:
            self._reserved -= size
            self._set(key, size)

    def found(self, key: ChunkKey, size: int) -> None:
        """A chunk was there at start, within the capacity or not."""
        with self._lock:
            self._set(key, size)

    def forget(self, key: ChunkKey) -> None:
        """The chunk under *key*, if there was one, is gone."""
        with self._lock:
            self._used -= self._sizes.pop(key, 0)

    def _set(self, key: ChunkKey, size: int) -> None:
        self._used += size - self._sizes.get(key, 0)
        self._sizes[key] = size
