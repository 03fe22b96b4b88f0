"""A limit on the memory of all values being received."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Transit:
    """A number of bytes, on top of those of stored values. Safe from any thread."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._freed = Condition()

    @contextmanager
    def of(self, size: int, seconds: float) -> Iterator[bool]:
        """Reserve *size* bytes for a block. Yield False if they are not free within *seconds*."""
        with self._freed:
            granted = self._freed.wait_for(lambda: self._left >= size, seconds)
            if granted:
                self._left -= size
        try:
            yield granted
        finally:
            if granted:
                with self._freed:
                    self._left += size
                    self._freed.notify_all()
