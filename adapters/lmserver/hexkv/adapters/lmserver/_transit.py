"""How much memory values on their way in may take together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Transit:
    """So many bytes, which nobody takes from what is kept. Safe from any thread."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._freed = Condition()

    @contextmanager
    def of(self, size: int, seconds: float) -> Iterator[bool]:
        """Have *size* bytes while the block lasts. False if none came free for *seconds*."""
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
