"""Chunks sorted by class and, roughly, by age, without ever sorting them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from hexkv.core.policies.adaptive._ages import EPOCH_BITS, OCTAVES
from hexkv.core.policies.adaptive._reuse_distance import Gaps


class Shelves:
    """For each class a row of shelves, each a list of slots from oldest to newest.

    A new chunk goes on the first shelf of its class. Shelf *n* is emptied onto the end of the next
    one every ``2**n`` epochs: a doubly linked list is appended to another in one step, so ageing
    costs nothing per chunk. A shelf holds ages within a factor of four; the age of its oldest chunk
    is known exactly.

    Slots below ``first`` are the heads of the lists; the caller numbers the others.
    """

    def __init__(self, classes: int) -> None:
        self.first = classes * OCTAVES
        self._newer = array("i", range(self.first))
        self._older = array("i", range(self.first))
        self._time = array("q", bytes(8 * self.first))
        self._epoch = 0
        self._next = 0
        self._order = list(range(self.first))

    def grow(self) -> int:
        """Return a new slot."""
        for links in (self._newer, self._older, self._time):
            links.append(0)
        return len(self._newer) - 1

    def time(self, slot: int) -> int:
        """Return the time at which the chunk in *slot* was put there."""
        return self._time[slot]

    def put(self, slot: int, kind: int, now: int, below: int | None = None) -> None:
        """Put a chunk of class *kind* into *slot*, as the newest or just older than *below*."""
        newer = kind * OCTAVES if below is None else below
        older = self._older[newer]
        self._older[slot], self._newer[slot] = older, newer
        self._newer[older] = self._older[newer] = slot
        self._time[slot] = now

    def remove(self, slot: int) -> None:
        """Remove the chunk from *slot*."""
        older, newer = self._older[slot], self._newer[slot]
        self._newer[older], self._older[newer] = newer, older

    def advance(self, now: int, gaps: Gaps, step: int) -> None:
        """Advance to *now*; move aged shelves and rank them, at most once every *step* ticks."""
        epoch = now >> EPOCH_BITS
        if epoch <= self._epoch or now < self._next:
            return
        self._next = now + step
        while self._epoch < epoch:
            self._epoch += 1
            rows = (self._epoch & -self._epoch).bit_length()
            for row in range(min(rows, OCTAVES - 1) - 1, -1, -1):
                for shelf in range(row, self.first, OCTAVES):
                    if self._newer[shelf] != shelf:
                        self._pour(shelf, shelf + 1)
        self._arrange(now, gaps)

    def _arrange(self, now: int, gaps: Gaps) -> None:
        """Order the shelves by the worth of the oldest chunk on each; of equals the older first."""
        ranks = []
        for shelf, oldest in enumerate(self._newer[: self.first]):
            if oldest != shelf:
                time = self._time[oldest]
                ranks.append((gaps.worth(shelf // OCTAVES, now - time), time, shelf))
            elif shelf % OCTAVES == 0:  # only here chunks can come in before the next time
                ranks.append((gaps.worth(shelf // OCTAVES, 0), now, shelf))
        ranks.sort()
        self._order = [shelf for _, _, shelf in ranks]

    def worst_first(self) -> Iterator[int]:
        """Yield all slots in use, the least valuable first."""
        newer = self._newer
        for shelf in self._order:
            slot = newer[shelf]
            while slot != shelf:
                yield slot
                slot = newer[slot]

    def _pour(self, shelf: int, onto: int) -> None:
        newer, older = self._newer, self._older
        oldest, newest, before = newer[shelf], older[shelf], older[onto]
        newer[before], older[oldest] = oldest, before
        newer[newest], older[onto] = onto, newest
        newer[shelf] = older[shelf] = shelf
