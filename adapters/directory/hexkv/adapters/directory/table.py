"""The columns that hold a tag: an open-addressing table in two arrays, used in whole batches.

A slot has a tag and a row of bits, one for each column: 16 bytes with 64 columns. Slots are probed
by double hashing. A slot without a bit is free, and keeps its tag so that probing continues after
it; one that was never used has tag 0 and ends the probing.

Each batch takes a few array operations for each round of probing, of which there are about ten; so
a batch of 512 costs little more than one of 8.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hexkv.adapters.directory.tags import Tags

Rows = npt.NDArray[np.uint64]
"""One row of words per tag; bit ``column % 64`` of word ``column // 64`` represents a column."""

_Slots = npt.NDArray[np.intp]

WORD = 64
_SMALLEST = 12
"""The smallest size of the table: the power of two of its slots."""

_FULL = 0.66
"""Share of the slots that may have a tag: beyond, absent tags take too many rounds."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio (Knuth, TAOCP 6.4): consecutive tags lie far apart."""

_HALF = np.uint64(32)
"""Bits by which a tag is shifted and mixed with itself: otherwise tags at equal distances would
have slots and steps at equal distances, too, and probe the same slots one after another."""

_REBUILT = 1 << 16
"""Rows moved in one batch."""


class Table:
    """Tags, each with a set of columns. Not safe from several threads at a time.

    Args:
        columns: the number allowed.
        most: tags that it takes at least; beyond twice as many, new ones are dropped.
    """

    def __init__(self, columns: int, most: int) -> None:
        self._words = -(-columns // WORD)
        self._largest = max(_SMALLEST, int(most / _FULL).bit_length())
        self._make(_SMALLEST)
        self.dropped = 0
        """Tags dropped because the table was full, so far."""

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return self._tags.nbytes + self._rows.nbytes

    def add(self, tags: Tags, column: int) -> None:
        """Set *column* for each tag."""
        found = self._find(tags)
        word, bit = divmod(column, WORD)
        mask = np.uint64(1 << bit)
        here = found >= 0
        slots = found[here]
        self._live += np.unique(slots[~self._taken(slots)]).size
        self._rows[slots, word] |= mask
        if not here.all():
            new = np.unique(tags[~here])
            if self._room(len(new)):
                row = np.zeros((1, self._words), np.uint64)
                row[0, word] = mask
                self._insert(new, np.broadcast_to(row, (len(new), self._words)))
            else:
                self.dropped += len(new)

    def remove(self, tags: Tags, column: int) -> None:
        """Clear *column* for each tag."""
        found = self._find(tags)
        slots = np.unique(found[found >= 0])
        word, bit = divmod(column, WORD)
        before = self._taken(slots)
        self._rows[slots, word] &= np.uint64(~(1 << bit) & (1 << WORD) - 1)
        self._live -= int(before.sum() - self._taken(slots).sum())

    def rows(self, tags: Tags) -> Rows:
        """Return the columns of each tag."""
        found = self._find(tags)
        rows = self._rows[found]
        rows[found < 0] = 0
        return rows

    def wipe(self, columns: Rows) -> None:
        """Clear all columns of the row *columns*, for every tag. The only full scan."""
        for word in range(self._words):
            if columns[word]:
                self._rows[:, word] &= ~columns[word]
        self._live = int(np.count_nonzero(self._rows.any(axis=1)))

    def _make(self, power: int) -> None:
        self._power = power
        self._tags: Tags = np.zeros(1 << power, np.uint64)
        self._rows: Rows = np.zeros((1 << power, self._words), np.uint64)
        self._used = 0
        """Slots that have a tag."""
        self._live = 0
        """Slots that have a bit."""

    def _start(self, tags: Tags) -> tuple[_Slots, _Slots]:
        """Return the first slot of each tag's probing, and its step."""
        mixed = (tags ^ tags >> _HALF) * _SPREAD
        mixed ^= mixed >> _HALF
        mixed *= _SPREAD
        slots = (mixed >> np.uint64(WORD - self._power)).astype(np.intp)
        steps = (mixed & np.uint64((1 << self._power) - 1)).astype(np.intp) | 1
        return slots, steps

    def _find(self, tags: Tags) -> _Slots:
        """Return the slot of each tag, -1 if there is none."""
        slots, steps = self._start(tags)
        found = np.full(len(tags), -1, np.intp)
        todo = np.arange(len(tags))
        mask = (1 << self._power) - 1
        while todo.size:
            there = self._tags[slots]
            same = there == tags
            found[todo[same]] = slots[same]
            on = there != 0
            on &= ~same
            todo, tags, steps = todo[on], tags[on], steps[on]
            slots = (slots[on] + steps) & mask
        return found

    def _insert(self, tags: Tags, rows: Rows) -> None:
        """Give each tag a free slot with its row. All are new and distinct; the slots suffice."""
        self._live += len(tags)
        slots, steps = self._start(tags)
        ring = (1 << self._power) - 1
        while tags.size:
            free = ~self._taken(slots)
            claimed = slots[free]
            fresh = self._tags[claimed] == 0
            # If several claim one slot, the last one gets it.
            self._tags[claimed] = tags[free]
            won = self._tags[claimed] == tags[free]
            self._rows[claimed[won]] = rows[free][won]
            self._used += int(np.count_nonzero(fresh & won))
            lost = ~free
            lost[free] = ~won
            tags, rows, steps = tags[lost], rows[lost], steps[lost]
            slots = (slots[lost] + steps) & ring

    def _taken(self, slots: _Slots) -> npt.NDArray[np.bool_]:
        rows = self._rows[slots]
        one: Tags = rows[:, 0] if self._words == 1 else np.bitwise_or.reduce(rows, axis=1)
        taken: npt.NDArray[np.bool_] = one != 0
        return taken

    def _room(self, more: int) -> bool:
        """Make room for *more* new tags. False if the table is full."""
        if self._used + more <= _FULL * (1 << self._power):
            return True
        wanted = self._live + more
        power = max(_SMALLEST, int(wanted / _FULL).bit_length())
        if power > self._largest:
            # Slots without a bit are worth a rebuild only if there are many of them.
            if self._used - self._live < (1 << self._largest) // 8:
                return False
            power = self._largest
        self._rebuild(power)
        return self._used + more <= _FULL * (1 << self._power)

    def _rebuild(self, power: int) -> None:
        tags, rows = self._tags, self._rows
        self._make(power)
        for start in range(0, len(tags), _REBUILT):
            part = rows[start : start + _REBUILT]
            taken = part.any(axis=1)
            self._insert(tags[start : start + _REBUILT][taken], part[taken])
