"""Chunks that cannot be read although their store works, and the consequences.

A store answers ``Failed`` for one chunk where the file, the object or the sector is at fault, and
for every chunk where the store is. A chunk that failed twice in a row is *barred*: lookups miss it,
and the next write of it replaces it. This holds only for a fault of the chunk itself: an error that
means that the store was not reached (``StoreUnreachable``) counts as one if the store gave another
answer between two failures.

A bar ends when the chunk is read, as it is after each write. Otherwise it ends after a minute,
since the cause may be repaired by hand, or after ten seconds if the store was not reached; each
further failure doubles that time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from hexkv.core.tiers.stores.answers import words
from hexkv.ports import (
    ChunkKey,
    Clock,
    Failed,
    ReadOutcome,
    StoreFull,
    StoreUnreachable,
    TimedOut,
)

TWICE = 2
"""The number of failures in a row that bar a chunk."""

FIRST_BAR = 60.0
LONGEST_BAR = 900.0
"""Seconds."""

UNREACHED_BARS = 10.0, 60.0
"""Seconds for an unreached store: the part of it that holds the chunk may be back soon."""

_MOST = 4096
"""The most chunks remembered; the oldest is forgotten first."""

_BROUGHT_NOTHING = {Failed, TimedOut}


@dataclass(slots=True)
class _Fault:
    reads: int
    """The number of answered reads before the first failure."""

    answers: int
    """The number of answers of the store before it."""

    failures: int = 0
    reached: bool = False
    """True if the store was reached: the fault is the chunk's."""

    pause: float = 0.0
    until: float = 0.0
    """The time at which the bar ends."""

    anew: bool = False
    """True if it was written again, and could still not be read."""


class Barred(NamedTuple):
    """The reason why a chunk is barred."""

    words: str
    """The error."""

    alone: bool
    """True if the store has answered other reads since: the chunk may be removed at once."""


class KeyFaults:
    """The faulty chunks of one store. Safe from any thread.

    Args:
        clock: the clock for bars.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self.noted: dict[ChunkKey, _Fault] = {}
        """Chunks whose last read failed. Usually empty: then no call to this object is needed."""

        self._fresh: dict[ChunkKey, Barred] = {}
        self.withdrawn: dict[ChunkKey, None] = {}
        """Chunks that were barred, and neither read nor written since. Usually empty."""

        self._reads = self._answers = 0
        self._unread: set[ChunkKey] = set()
        self.unwritten: set[ChunkKey] = set()
        """Chunks that could not be written alone, since the last successful write."""

    def read(self, keys: Sequence[ChunkKey], outcomes: Sequence[ReadOutcome]) -> None:
        """Record the outcomes of one call."""
        rows = list(zip(keys, outcomes, strict=True))
        brought = [key for key, outcome in rows if type(outcome) not in _BROUGHT_NOTHING]
        with self._lock:
            reads, answers = self._reads, self._answers
            if brought:
                self._reads += 1
                self._answers += 1
                self._unread.clear()
            for key in brought:
                self.noted.pop(key, None)
            for key, outcome in rows:
                if type(outcome) is Failed:
                    fault = self.noted.get(key)
                    if fault is None:
                        fault = self.noted[key] = _Fault(reads, answers)
                        if len(self.noted) > _MOST:
                            del self.noted[next(iter(self.noted))]
                    self._note(key, fault, outcome.error)

    def answered(self) -> None:
        """Record that the store gave an answer."""
        with self._lock:
            self._answers += 1

    def once(self, key: ChunkKey) -> bool:
        """True if a chunk has failed once: a second read shows if the fault lasts."""
        fault = self.noted.get(key)
        return fault is not None and fault.failures < TWICE

    def barred(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that are barred."""
        if not self.noted:
            return []
        now = self._clock.now()
        found = [(key, self.noted.get(key)) for key in keys]
        return [key for key, fault in found if fault is not None and now < fault.until]

    def without(self, keys: Sequence[ChunkKey], here: Sequence[bool]) -> Sequence[bool]:
        """Return *here*, with ``False`` for chunks that are barred."""
        if not self.noted:
            return here
        barred = set(self.barred(keys))
        if not barred:
            return here
        return [there and key not in barred for key, there in zip(keys, here, strict=True)]

    def doubted(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that were barred once, and not read since."""
        found = [(key, self.noted.get(key)) for key in keys]
        return [key for key, fault in found if fault is not None and fault.failures >= TWICE]

    def lost(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that are barred, and still unreadable after another write."""
        found = [(key, self.noted.get(key)) for key in self.barred(keys)]
        return [key for key, fault in found if fault is not None and fault.anew]

    def written_in_vain(self, keys: Sequence[ChunkKey]) -> None:
        """Record that *keys* were written again, and cannot be read."""
        for key in keys:
            if (fault := self.noted.get(key)) is not None:
                fault.anew = True

    def take_fresh(self) -> dict[ChunkKey, Barred]:
        """Return the chunks that were barred since the last call."""
        if not self._fresh:
            return {}
        with self._lock:
            fresh, self._fresh = self._fresh, {}
            self.withdrawn.update(dict.fromkeys(fresh))
            while len(self.withdrawn) > _MOST:
                del self.withdrawn[next(iter(self.withdrawn))]
            return fresh

    def take_returned(self, keys: Iterable[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that were withdrawn, and have been read or written just now."""
        if not self.withdrawn:
            return []
        with self._lock:
            back = [key for key in keys if key in self.withdrawn]
            for key in back:
                del self.withdrawn[key]
            return back

    def reads_well(self, keys: Sequence[ChunkKey], outcomes: Sequence[object]) -> bool | None:
        """Return True if a read shows its store to be well; ``None`` if it shows nothing.

        A chunk that is read alone, and is at fault itself, counts against its store once. Its next
        failure counts only after the store has answered a read.
        """
        if not outcomes:
            return None
        if not _BROUGHT_NOTHING.issuperset(map(type, outcomes)):
            return True
        with self._lock:
            for key, outcome in zip(keys, outcomes, strict=True):
                fault = self.noted.get(key)
                if type(outcome) is not Failed or fault is None or not fault.reached:
                    return False
            return _first(self._unread, keys)

    def writes_well(
        self, keys: Sequence[ChunkKey], outcomes: Sequence[object], failed: Collection[object]
    ) -> bool | None:
        """Return the same for a write of *keys*. A store that is full is well.

        *failed* are the failures among *outcomes*, if there are any.
        """
        if not (failed or self.unwritten):
            return True
        errors = [outcome.error for outcome in outcomes if isinstance(outcome, Failed)]
        full = any(isinstance(error, StoreFull) for error in errors)
        if full or not _BROUGHT_NOTHING.issuperset(map(type, outcomes)):
            with self._lock:
                self.unwritten.clear()
            return True
        unreachable = any(isinstance(error, StoreUnreachable) for error in errors)
        if unreachable or len(errors) < len(outcomes):
            return False
        with self._lock:
            return _first(self.unwritten, keys)

    def _note(self, key: ChunkKey, fault: _Fault, error: Exception) -> None:
        named = not isinstance(error, StoreUnreachable)
        fault.failures += 1
        fault.reached = named or self._answers > fault.answers
        if fault.failures < TWICE or not fault.reached:
            return
        first, longest = (FIRST_BAR, LONGEST_BAR) if named else UNREACHED_BARS
        fault.pause = min(2 * fault.pause, longest) if fault.pause else first
        fault.until = self._clock.now() + fault.pause
        self._fresh[key] = Barred(words(error), named and self._reads > fault.reads)


def _first(before: set[ChunkKey], keys: Sequence[ChunkKey]) -> bool | None:
    """Return ``None`` for one chunk of *before*, and False for others, which join it."""
    if len(keys) == 1 and keys[0] in before:
        return None
    if len(before) < _MOST:
        before.update(keys)
    return False
