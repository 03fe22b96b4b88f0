"""Who may read and who may change a chunk at a time, among this store's own threads.

Mooncake frees a removed object's memory at once, under a read that is going on. And it has
no call that replaces an object unseen: ``put`` keeps the old one, ``upsert`` makes readers
fail meanwhile. So within one process readers of a chunk and whoever replaces it take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition

from hexkv.adapters.mooncake._errands import OutOfTime
from hexkv.ports import Deadline


class Turns:
    """All names of a call at once, so that no two calls wait for each other."""

    def __init__(self) -> None:
        self._readers: Counter[str] = Counter()
        self._changing: set[str] = set()
        self._barred: list[str] = []
        self._changed = Condition()

    @contextmanager
    def reading(self, names: Collection[str], deadline: Deadline) -> Iterator[None]:
        """Beside others who read.

        Raises:
            OutOfTime: somebody changes one of *names* for longer than *deadline* allows.
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
        """Alone with *names*, none of them twice.

        Raises:
            OutOfTime: somebody uses one of them for longer than *deadline* allows.
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
        """Alone with every name that begins with *prefix*, whichever there are.

        Raises:
            OutOfTime: somebody uses one of them for longer than *deadline* allows.
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
        """True if nobody clears any of *names*."""
        return not any(name.startswith(prefix) for prefix in self._barred for name in names)
