"""The history of chunks that are missing: a bounded memory that explains misses.

The newest note of each chunk and tier is kept, up to a limit; a successful write or read of a chunk
removes its note, so a note always describes the last event. Columns in arrays rather than an object
per note: a note takes some 200 bytes, whatever its text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from hexkv.ports import NAMESPACE_BYTES, ChunkKey, Reason

_DIGEST_BYTES = 22
_TEXTS = 1024
_TEXT_LENGTH = 120
_STEP = 1024


_REASONS = tuple(Reason)


class Note(NamedTuple):
    """The last event of one chunk on one tier."""

    cause: Reason

    when: float
    """Wall-clock seconds since 1970-01-01 UTC."""

    detail: str = ""
    """A text, cut to one line; empty if it was forgotten, because there were too many."""


class History:
    """The newest notes. Safe from any thread; its lock is never held during I/O.

    Args:
        limit: the most notes that are kept.
    """

    def __init__(self, limit: int = 65_536) -> None:
        if limit < 1:
            raise ValueError(f"a history of {limit} notes")
        self._limit = limit
        self._lock = Lock()
        self.places: dict[bytes, int] = {}
        """The place of each chunk's note. If it is empty, no call is needed."""

        # A ring of notes as columns; the number of notes ever made.
        self._names: list[bytes] = []
        self._when = array("d")
        self._cause = array("B")
        self._text = array("Q")
        self._made = 0
        self._tiers: dict[str, bytes] = {}
        # A ring of distinct details: errors repeat, and those that do not may be forgotten.
        self._texts = [""] * _TEXTS
        self._numbers: dict[str, int] = {}
        self._told = 0

    def __len__(self) -> int:
        return len(self.places)

    def note(
        self, keys: Sequence[ChunkKey], tier: str, cause: Reason, when: float, detail: str = ""
    ) -> None:
        """Note an event of these chunks on *tier*. O(1) for each of them."""
        code = _REASONS.index(cause)
        for start in range(max(0, len(keys) - self._limit), len(keys), _STEP):
            with self._lock:
                number, mark = self._number(detail), self._mark(tier)
                names = [_name(key, mark) for key in keys[start : start + _STEP]]
                while names:
                    room = self._limit - self._made % self._limit
                    self._put(names[:room], when, code, number)
                    names = names[room:]

    def forget(self, keys: Sequence[ChunkKey], tier: str) -> None:
        """Remove the notes of chunks that were written or read successfully on *tier*."""
        mark = self._tiers.get(tier)  # without the lock: most chunks have no note
        if mark is None:
            return
        end = NAMESPACE_BYTES + _DIGEST_BYTES
        names = [key[NAMESPACE_BYTES:end] + mark for key in keys]  # see _name
        if not self.places.keys().isdisjoint(names):
            with self._lock:
                for name in names:
                    self.places.pop(name, None)

    def find(self, key: ChunkKey, *tiers: str) -> Note | None:
        """Return the last event of a chunk on any of *tiers*; ``None`` if none is remembered."""
        newest: Note | None = None
        for tier in tiers:
            mark = self._tiers.get(tier)  # without the lock: most chunks have no note
            if mark is None or (name := _name(key, mark)) not in self.places:
                continue
            with self._lock:
                place = self.places.get(name)
                if place is None or (newest is not None and self._when[place] <= newest.when):
                    continue
                number = self._text[place]
                known = self._told - number < _TEXTS
                text = self._texts[number % _TEXTS] if known else ""
                newest = Note(_REASONS[self._cause[place]], self._when[place], text)
        return newest

    def _put(self, names: Sequence[bytes], when: float, cause: int, text: int) -> None:
        """Put notes into the next places of the ring; the caller keeps them within its end."""
        start, count = self._made % self._limit, len(names)
        places = range(start, start + count)
        for place, oldest in zip(places, self._names[start : start + count], strict=False):
            if self.places.get(oldest) == place:
                del self.places[oldest]
        for name in names:
            # Popped, so that the dictionary and the ring hold the same bytes object.
            self.places.pop(name, None)
        # Beyond the last place of a ring that is not full yet, these assignments append.
        part = slice(start, start + count)
        self._names[part] = names
        self._when[part] = array("d", [when]) * count
        self._cause[part] = array("B", [cause]) * count
        self._text[part] = array("Q", [text]) * count
        self.places.update(zip(names, places, strict=True))
        self._made += count

    def _mark(self, tier: str) -> bytes:
        mark = self._tiers.get(tier)
        if mark is None:
            mark = self._tiers[tier] = (len(self._tiers) % 65_536).to_bytes(2, "little")
        return mark

    def _number(self, detail: str) -> int:
        text = " ".join(detail[: 4 * _TEXT_LENGTH].split())
        text = text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 3]}..."
        number = self._numbers.get(text)
        if number is None:
            number = self._told = self._told + 1
            old = self._texts[number % _TEXTS]
            if self._numbers.get(old) == number - _TEXTS:
                del self._numbers[old]
            self._texts[number % _TEXTS] = text
            self._numbers[text] = number
        return number


def _name(key: ChunkKey, mark: bytes) -> bytes:
    # The chained digest covers the namespace, and 176 bits of it are as good as all.
    return key[NAMESPACE_BYTES : NAMESPACE_BYTES + _DIGEST_BYTES] + mark
