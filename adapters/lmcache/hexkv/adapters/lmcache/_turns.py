"""Locks on chunks among one store's own threads, because a change takes several messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition

from hexkv.adapters.net.errors import OutOfTime
from hexkv.ports import ChunkKey, Deadline


class KeyLocks:
    """Locks all keys of a call at once, so that no two calls wait for each other."""

    def __init__(self) -> None:
        self._taken: set[ChunkKey] = set()
        self._changed = Condition()

    @contextmanager
    def alone_with(self, keys: Collection[ChunkKey], deadline: Deadline) -> Iterator[None]:
        """Lock *keys* for a block.

        Raises:
            OutOfTime: another call held one of them beyond *deadline*.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._taken.isdisjoint(keys), deadline.remaining()
            ):
                raise OutOfTime("others change the same chunks")
            self._taken.update(keys)
        try:
            yield
        finally:
            with self._changed:
                self._taken.difference_update(keys)
                self._changed.notify_all()
