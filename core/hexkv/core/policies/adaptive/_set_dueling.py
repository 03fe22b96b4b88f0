"""Two small simulated tiers, to compare the hits of two policies."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from zlib import crc32

from hexkv.core.policies.adaptive._ages import EPOCH
from hexkv.core.policies.adaptive._reuse_distance import Gaps
from hexkv.core.policies.adaptive._shelves import Shelves
from hexkv.ports import ChunkKey

_SAMPLE = 512
"""The least number of chunks that each of the small tiers should hold."""

_LEVELS = (3, 0, 1, 0, 2, 0, 1, 0)
_SHIFTS = 3
_LEAD = 64
"""Eviction by worth must lead by more than one part in this many of its hits."""

_MEMORY = 16
"""The score is halved after this many times the tier's chunks."""


def sample(name: int) -> int:
    """Return the largest *n* for which this name is in the sample of one chunk in ``2**n``."""
    return _LEVELS[(name >> 8) & 7]


class Duel:
    """Least recently used against least worth, on a proportional sample of chunks.

    The sample is taken by the chunks' names, so both policies get the same requests; this is set
    duelling (Qureshi et al., "Adaptive insertion policies", ISCA 2007) with sampled shadows
    (Waldspurger et al., "SHARDS", FAST 2015).
    """

    def __init__(self, classes: int) -> None:
        self.shift = 0
        """One of ``2**shift`` chunks takes part."""

        self._recent: OrderedDict[ChunkKey, None] = OrderedDict()
        self._worthy: dict[ChunkKey, int] = {}
        self._shelves = Shelves(classes)
        self._slots: list[ChunkKey | None] = [None] * self._shelves.first
        self._free: list[int] = []
        self._room = 0
        self._score = [0.0, 0.0]
        self._halve = 0

    @property
    def worth_wins(self) -> bool:
        """True if eviction by worth leads by more than the noise of a sample.

        Until it has shown that, LRU decides. With a smaller lead it fell below LRU in traces where
        the two are nearly equal: each change leaves the tier in an order that suits neither.
        """
        recent, worth = self._score
        return worth - recent > worth / _LEAD

    def fit(self, chunks: int) -> None:
        """Scale the sample to this number of *chunks* in the tier."""
        self._room = chunks >> self.shift

    def play(self, met: list[tuple[ChunkKey, int, int]], now: int, gaps: Gaps) -> None:
        """Replay the chunks of one request: key, sample, and the new class of each."""
        self._shelves.advance(now, gaps, EPOCH << self.shift)
        met = [entry for entry in reversed(met) if entry[1] >= self.shift]
        self._play_recent(met)
        self._play_worth(met, now)
        if now >= self._halve:
            self._halve = now + _MEMORY * max(self._room << self.shift, 64)
            self._score = [score / 2 for score in self._score]
            if self._room >= 2 * _SAMPLE and self.shift < _SHIFTS:
                self._thin()

    def _play_recent(self, met: list[tuple[ChunkKey, int, int]]) -> None:
        recent = self._recent
        for key, _, _ in met:
            if key in recent:
                self._score[0] += 1
                recent.move_to_end(key)
            else:
                recent[key] = None
        while len(recent) > self._room:
            recent.popitem(last=False)

    def _play_worth(self, met: list[tuple[ChunkKey, int, int]], now: int) -> None:
        new: dict[ChunkKey, int] = {}  # a chunk may go and come again in one request
        for key, _, kind in met:
            slot = self._worthy.get(key)
            if slot is None:
                new[key] = kind
            else:
                self._score[1] += 1
                self._shelves.remove(slot)
                self._shelves.put(slot, kind, now)
        # As in the tier, the chunks of a request are not evicted for each other.
        over = len(self._worthy) + len(new) - self._room
        for slot in list(islice(self._shelves.worst_first(), max(0, over))):
            self._drop(slot)
        first = len(new) - max(0, self._room - len(self._worthy))
        for key, kind in islice(new.items(), max(0, first), None):
            slot = self._free.pop() if self._free else self._grow()
            self._slots[slot] = key
            self._worthy[key] = slot
            self._shelves.put(slot, kind, now)

    def _thin(self) -> None:
        """Halve the sample: it is larger than necessary."""
        self.shift += 1
        self._room >>= 1
        for key in [key for key in self._recent if sample(crc32(key)) < self.shift]:
            del self._recent[key]
        for key in [key for key in self._worthy if sample(crc32(key)) < self.shift]:
            self._drop(self._worthy[key])

    def _drop(self, slot: int) -> None:
        key = self._slots[slot]
        if key is not None:
            del self._worthy[key]
            self._slots[slot] = None
            self._shelves.remove(slot)
            self._free.append(slot)

    def _grow(self) -> int:
        self._slots.append(None)
        return self._shelves.grow()
