"""The chunks that a process holds, and the changes of them that wait to be published.

An event sink of the tiers keeps the set of chunks that some tier has. Changes are queued, one entry
per chunk: a chunk that comes and goes before it was published is not published at all. A queue that
would outgrow its bytes is emptied, and its reader takes a snapshot of the set.

A chunk takes about 100 bytes of this process beside its key, which is the tier's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from threading import Lock

from hexkv.ports import KEY_BYTES, REPORT_KEYS, CacheEvent, Change, ChunkKey

_ENTRY_BYTES = KEY_BYTES + 100
"""Bytes that a queued key counts: its own, and its share of a dictionary."""


class HeldChunks:
    """The chunks that some tier of this process has. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[ChunkKey, int] = {}
        """For each chunk a bit per tier; in the order in which chunks came."""
        self._bits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def apply(self, event: CacheEvent, queues: Sequence[ChangeQueue]) -> None:
        """Apply a tier's change, and put the resulting changes of the node into *queues*."""
        stored = event.change is Change.STORED
        with self._lock:
            bit = self._bits.setdefault(event.tier, 1 << len(self._bits))
            turned = []
            for key in event.keys:
                before = self._held.get(key, 0)
                now = before | bit if stored else before & ~bit
                if now:
                    self._held[key] = now
                elif before:
                    del self._held[key]
                if (before == 0) != (now == 0):
                    turned.append(key)
            for queue in queues:
                queue.put(turned, held=stored)

    def take(self, queue: ChangeQueue) -> tuple[list[ChunkKey], list[ChunkKey]]:
        """Return one report's chunks from *queue*: those held now, and those not held."""
        with self._lock:
            return queue.take()

    def snapshot(self, queue: ChangeQueue) -> list[ChunkKey]:
        """Return all of them, the newest first; *queue* receives changes from now on."""
        with self._lock:
            queue.begin()
            return list(reversed(self._held))


class ChangeQueue:
    """The changes to report to one directory. The caller holds the lock of the chunks."""

    def __init__(self, most: int) -> None:
        self._most = most // _ENTRY_BYTES
        self._changed: dict[ChunkKey, bool] = {}
        self.following = False
        """False: nothing is queued, for the directory needs a snapshot first."""

    def __len__(self) -> int:
        return len(self._changed)

    def begin(self) -> None:
        """Queue changes from now on."""
        self._changed = {}
        self.following = True

    def end(self) -> None:
        """Queue nothing until a snapshot is taken."""
        self._changed = {}
        self.following = False

    def put(self, keys: Sequence[ChunkKey], *, held: bool) -> None:
        """Queue that the node holds *keys* from now on, or has lost them."""
        if not self.following:
            return
        changed = self._changed
        for key in keys:
            # A queued change can only be the opposite: then the directory's state is right again.
            if changed.pop(key, None) is None:
                changed[key] = held
        if len(changed) > self._most:
            self.end()

    def take(self) -> tuple[list[ChunkKey], list[ChunkKey]]:
        """As :meth:`HeldChunks.take`."""
        taken: tuple[list[ChunkKey], list[ChunkKey]] = ([], [])
        for key in list(islice(self._changed, REPORT_KEYS)):
            taken[not self._changed.pop(key)].append(key)
        return taken
