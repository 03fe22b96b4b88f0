"""Read and write locks on chunks among this store's own threads.

Mooncake frees a removed object's memory at once, even during a read. And it has no call that
replaces an object atomically: ``put`` keeps the old one, and readers fail during ``upsert``.
So within one process the readers and the writer of a chunk take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition

from hexkv.adapters.mooncake._errands import OutOfTime
from hexkv.ports import Deadline


class Turns:
    """Locks all names of a call at once, so that no two calls wait for each other."""

    def __init__(self) -> None:
        self._readers: Counter[str] = Counter()
        self._changing: set[str] = set()
        self._barred: list[str] = []
        self._changed = Condition()

    @contextmanager
    def reading(self, names: Collection[str], deadline: Deadline) -> Iterator[None]:
        """Lock *names* for reading, shared with other readers.

        Raises:
            OutOfTime: another call changes one of *names* beyond *deadline*.
        """
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._changing.isdisjoint(names) and self._open(names),
                deadline.remaining(),
            )
            if not free:
                raise OutOfTime
            self._readers.update(names)
        try:
            yield
        finally:
            with self._changed:
                self._readers.subtract(names)
                for name in names:
                    if not self._readers[name]:
                        del self._readers[name]
                self._changed.notify_all()

    @contextmanager
    def changing(self, names: Collection[str], deadline: Deadline) -> Iterator[None]:
        """Lock *names*, none of them twice, for changes.

        Raises:
            OutOfTime: another call uses one of them beyond *deadline*.
        """
        with self._changed:
            free = self._changed.wait_for(
                lambda: (
                    self._changing.isdisjoint(names)
                    and not any(name in self._readers for name in names)
                    and self._open(names)
                ),
                deadline.remaining(),
            )
            if not free:
                raise OutOfTime
            self._changing.update(names)
        try:
            yield
        finally:
            with self._changed:
                self._changing.difference_update(names)
                self._changed.notify_all()

    @contextmanager
    def clearing(self, prefix: str, deadline: Deadline) -> Iterator[None]:
        """Lock every possible name that begins with *prefix* for changes.

        Raises:
            OutOfTime: another call uses one of them beyond *deadline*.
        """
        with self._changed:
            free = self._changed.wait_for(
                lambda: not self._barred and not self._used(prefix), deadline.remaining()
            )
            if not free:
                raise OutOfTime
            self._barred.append(prefix)
        try:
            yield
        finally:
            with self._changed:
                self._barred.remove(prefix)
                self._changed.notify_all()

    def _used(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in (*self._readers, *self._changing))

    def _open(self, names: Collection[str]) -> bool:
        """True if no call clears any of *names*."""
        return not any(name.startswith(prefix) for prefix in self._barred for name in names)
