"""What is being deleted from a store, so that nobody is told or writes what is about to go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import Condition

from hexkv.core.tiers.indexes import Index
from hexkv.ports import ChunkKey, Deadline

Wait = Callable[[Condition, Callable[[], bool], Deadline], bool]
"""See :meth:`hexkv.ports.Executor.wait`."""


class Deleted:
    """The chunks that were deleted since it was made, or were being deleted then."""

    def __init__(self, keys: Collection[ChunkKey], prefixes: Collection[bytes]) -> None:
        self._keys = set(keys)
        self._prefixes = set(prefixes)

    def add(self, keys: Collection[ChunkKey], prefixes: Collection[bytes]) -> None:
        """These as well, and whatever begins so."""
        self._keys.update(keys)
        self._prefixes.update(prefixes)

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._keys or any(key.startswith(prefix) for prefix in self._prefixes)


class Deleting:
    """The deletions of one tier that are under way. Safe from any thread.

    A clear asks what is there and then deletes it: what the index learnt from the store in between
    would stay in it. So while one is under way nothing of the store's is taken into the index, and
    none begins meanwhile.

    Args:
        index: of the tier.
        wait: the executor's.
    """

    def __init__(self, index: Index, wait: Wait) -> None:
        self._index = index
        self._wait = wait
        self._changed = Condition()
        self._clears = 0
        self._taking = 0
        """How many are taking chunks in: bookkeeping alone, in which nobody waits."""

        self._keys: set[ChunkKey] = set()
        self._prefixes: list[bytes] = []
        self._followed: list[Deleted] = []
        self.undeleted: dict[ChunkKey, None] = {}
        """What was to be deleted, and is put off."""

        self.turn = 0
        """Another one whenever a deletion begins or ends. What a store said of chunks that the
        index does not know counts only while this stays what it was before the question."""

    @contextmanager
    def now(
        self, keys: Sequence[ChunkKey], prefixes: Sequence[bytes] = ()
    ) -> Iterator[Sequence[ChunkKey]]:
        """Those of *keys* that nobody else is deleting, and that nobody has stored anew.

        Nor can anybody until they are gone: a late delete would take what the index has again.
        The store itself deletes whatever begins with one of *prefixes*.
        """
        with self._changed:
            self.turn += 1
            mine = self._index.depart([key for key in keys if key not in self._keys])
            self._keys.update(mine)
            self._prefixes += prefixes
            for deleted in self._followed:
                deleted.add(mine, prefixes)
        try:
            yield mine
        finally:
            with self._changed:
                self.turn += 1
                self._keys.difference_update(mine)
                for prefix in prefixes:
                    self._prefixes.remove(prefix)
                self._changed.notify_all()

    def settled(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Wait until no deletion of any of *keys* is under way. False: one still is at *deadline*.

        For callers whose own deletions are over: two that wait for each other never end.
        """
        with self._changed:
            return self._wait(self._changed, lambda: self._keys.isdisjoint(keys), deadline)

    def done(self, keys: Sequence[ChunkKey]) -> None:
        """These are off the store, also those of them that were put off."""
        with self._changed:
            for key in keys:
                self.undeleted.pop(key, None)
        self._index.deleted(keys)

    def put_off(self, keys: Sequence[ChunkKey]) -> None:
        """Remember to delete chunks that the index let go of."""
        with self._changed:
            self.undeleted.update(dict.fromkeys(keys))

    def take(self, most: int) -> list[ChunkKey]:
        """Up to *most* of what was put off, for the caller to delete."""
        with self._changed:
            part = list(islice(self.undeleted, most))
            for key in part:
                del self.undeleted[key]
            return part

    @contextmanager
    def clearing(self, deadline: Deadline) -> Iterator[bool]:
        """A clear: what is in the index at its beginning is all that gets there from the store.

        False: somebody is taking chunks in, and was not done by *deadline*.
        """
        with self._changed:
            free = self._wait(self._changed, lambda: not self._taking, deadline)
            if free:
                self.turn += 1
                self._clears += 1
        if not free:
            yield False
            return
        try:
            yield True
        finally:
            with self._changed:
                self.turn += 1
                self._clears -= 1
                self._changed.notify_all()

    @contextmanager
    def taking_in(self, deadline: Deadline, turn: int | None = None) -> Iterator[bool]:
        """What the store said may be taken into the index now.

        False: a clear is under way, and was not over by *deadline*; or something was deleted since
        *turn*, when the store was asked.
        """
        with self._changed:
            free = self._wait(self._changed, lambda: not self._clears, deadline)
            free = free and turn in (None, self.turn)
            if free:
                self._taking += 1
        if not free:
            yield False
            return
        try:
            yield True
        finally:
            with self._changed:
                self._taking -= 1
                self._changed.notify_all()

    @contextmanager
    def followed(self) -> Iterator[Deleted]:
        """What is deleted meanwhile: a store that is listed may have named it before."""
        with self._changed:
            deleted = Deleted(self._keys, self._prefixes)
            self._followed.append(deleted)
        try:
            yield deleted
        finally:
            with self._changed:
                self._followed.remove(deleted)
