"""Track deletions from a store, so that no lookup or write uses a chunk about to be deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import Condition

from hexkv.core.tiers.index.indexes import Index
from hexkv.ports import ChunkKey, Deadline

Wait = Callable[[Condition, Callable[[], bool], Deadline], bool]
"""See :meth:`hexkv.ports.Executor.wait`."""


class Deleted:
    """The chunks deleted since this was created, or being deleted at that time."""

    def __init__(self, keys: Collection[ChunkKey], prefixes: Collection[bytes]) -> None:
        self._keys = set(keys)
        self._prefixes = set(prefixes)

    def add(self, keys: Collection[ChunkKey], prefixes: Collection[bytes]) -> None:
        """Add these keys, and all keys that begin with one of *prefixes*."""
        self._keys.update(keys)
        self._prefixes.update(prefixes)

    def __contains__(self, key: ChunkKey) -> bool:
        # A copy: another thread may add some at this time.
        return key in self._keys or key.startswith(tuple(self._prefixes))


class Deleting:
    """The deletions in progress on one tier. Safe from any thread.

    A clear lists the chunks and then deletes them: a chunk that the index learned from the store in
    between would stay in the index. So while a clear is in progress the index learns nothing from
    the store, and no clear begins while the index learns.

    Args:
        index: the index of the tier.
        wait: the executor's ``wait``.
    """

    def __init__(self, index: Index, wait: Wait) -> None:
        self._index = index
        self._wait = wait
        self._changed = Condition()
        self._clears = 0
        self._taking = 0
        """The number of threads that add chunks to the index: bookkeeping only, without waiting."""

        self._keys: set[ChunkKey] = set()
        self._prefixes: list[bytes] = []
        self._followed: list[Deleted] = []
        self.undeleted: dict[ChunkKey, None] = {}
        """Chunks whose deletion is deferred."""

        self.turn = 0
        """Changes whenever a deletion begins or ends. A store's answer about chunks unknown to the
        index is valid only if this has not changed since before the query."""

    @contextmanager
    def now(
        self, keys: Sequence[ChunkKey], prefixes: Sequence[bytes] = ()
    ) -> Iterator[Sequence[ChunkKey]]:
        """Yield those of *keys* that no other thread is deleting, and that were not stored again.

        They cannot be stored until they are deleted: a late delete would remove a new chunk of the
        index. The store itself deletes all keys that begin with one of *prefixes*.
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
        """Wait until no deletion of any of *keys* is in progress. False if *deadline* passes first.

        For callers whose own deletions are over: two that wait for each other never end.
        """
        with self._changed:
            return self._wait(self._changed, lambda: self._keys.isdisjoint(keys), deadline)

    def done(self, keys: Sequence[ChunkKey]) -> None:
        """Note that these are deleted from the store, also the deferred ones among them."""
        with self._changed:
            for key in keys:
                self.undeleted.pop(key, None)
        self._index.deleted(keys)

    def put_off(self, keys: Sequence[ChunkKey]) -> None:
        """Remember to delete chunks that have left the index."""
        with self._changed:
            self.undeleted.update(dict.fromkeys(keys))

    def take(self, most: int) -> list[ChunkKey]:
        """Return up to *most* deferred chunks, for the caller to delete."""
        with self._changed:
            part = list(islice(self.undeleted, most))
            for key in part:
                del self.undeleted[key]
            return part

    @contextmanager
    def clearing(self, deadline: Deadline) -> Iterator[bool]:
        """Begin a clear: until it ends the index learns no chunks from the store.

        Yield False if another thread was adding chunks, and was not done by *deadline*.
        """
        with self._changed:
            free = self._wait(self._changed, lambda: not self._taking, deadline)
            if free:
                self.turn += 1
                self._clears += 1
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self.turn += 1
                    self._clears -= 1
                    self._changed.notify_all()

    @contextmanager
    def taking_in(self, deadline: Deadline, turn: int | None = None) -> Iterator[bool]:
        """Yield True if the index may learn chunks that the store listed or reported.

        Yield False if a clear was in progress and not over by *deadline*, or if a deletion began or
        ended since *turn*, the turn at the time of the query.
        """
        with self._changed:
            free = self._wait(self._changed, lambda: not self._clears, deadline)
            free = free and turn in (None, self.turn)
            if free:
                self._taking += 1
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._taking -= 1
                    self._changed.notify_all()

    @contextmanager
    def followed(self) -> Iterator[Deleted]:
        """Yield the deletions from now on: a running scan may have listed their chunks before."""
        with self._changed:
            deleted = Deleted(self._keys, self._prefixes)
            self._followed.append(deleted)
        try:
            yield deleted
        finally:
            with self._changed:
                self._followed.remove(deleted)
