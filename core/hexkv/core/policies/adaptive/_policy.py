"""The policy: the order of chunks, and the moments at which it learns from them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from zlib import crc32

from hexkv.core.policies.adaptive._ghosts import Runs
from hexkv.core.policies.adaptive._reuse_distance import Gaps
from hexkv.core.policies.adaptive._set_dueling import Duel, sample
from hexkv.core.policies.adaptive._shelves import Shelves
from hexkv.ports import ChunkKey

_MOST = 15
"""The most hits and turns that are counted."""

_STAGE = [0, 0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 6] + [7] * (2 * _MOST - 11)
_CLASSES = 16


def _class(hits: int, turn: int) -> int:
    """Return a chunk's class: the progress of its conversation, and if it was reused itself."""
    return 2 * _STAGE[hits + turn] + (hits > 0)


class Adaptive:
    """Evicts the chunk of the least learned worth, or the least recently used if that is better.

    Chunks are distinguished by their *turn* (the number of earlier requests of the same
    conversation before the one that brought them) and their *hits* (the number of uses since). For
    each class of them :class:`Gaps` learns when such chunks are used again, including evicted ones,
    of which :class:`Runs` remembers whole runs in one line each. The chunk whose class and age
    promise the fewest hits for its space is evicted first. If nothing can be learned, or has been
    yet, a :class:`Duel` finds that plain LRU does no worse; then LRU decides. A parent has at least
    its child's hits and is no older, so it is rarely worth less; under LRU it never is.

    Nothing in it is random: it depends on the calls only.
    """

    __slots__ = (
        "_clock",
        "_duel",
        "_free",
        "_gaps",
        "_hits",
        "_keys",
        "_met",
        "_most",
        "_newer",
        "_older",
        "_pending",
        "_returning",
        "_root",
        "_run",
        "_runs",
        "_sample",
        "_shelves",
        "_slots",
        "_turn",
    )

    def __init__(self) -> None:
        self._gaps = Gaps(_CLASSES)
        self._runs = Runs()
        self._duel = Duel(_CLASSES)
        self._shelves = Shelves(_CLASSES)
        top = self._shelves.grow()
        """The slot beyond both ends of the LRU list."""
        self._slots: dict[ChunkKey, int] = {}
        self._keys: list[ChunkKey | None] = [None] * (top + 1)
        self._newer = array("i", [0] * top + [top])
        self._older = array("i", [0] * top + [top])
        self._root = array("I", bytes(4 * (top + 1)))
        """The name of the first chunk of each slot's run."""
        self._hits, self._turn, self._sample = (bytearray(top + 1) for _ in range(3))
        self._free: list[int] = []
        self._most = 0
        self._clock = 0
        self._pending = 0
        """Chunks of the current request: it is one moment, so the clock waits."""
        self._met: list[tuple[ChunkKey, int, int]] = []
        self._run: int | None = None
        """The run that the current request is bringing."""
        self._returning = (0, 0, 0)
        """For that run: chunks that were here before and are still to come, hits, turn."""

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        parent = None if after is None else self._slots.get(after)
        if parent is None or self._shelves.time(parent) != self._clock:
            self._begin()
        below = self._shelves.first if parent is None else parent
        for key, name in self._recall(keys, parent):
            _, hits, turn = self._returning
            slot = self._take_slot(key)
            self._hits[slot], self._turn[slot] = hits, turn
            self._root[slot] = self._run or 0
            self._sample[slot] = sample(name)
            self._link(slot, below)
            self._enter(slot, below)
            below = slot
        self._pending += len(keys)
        self._most = max(self._most, len(self._slots))

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        self._begin()
        slots = [self._slots[key] for key in keys]
        shelves, clock, same, was = self._shelves, self._clock, 0, (0, 0)
        for slot in reversed(slots):
            hits = self._hits[slot]
            now = _class(hits, self._turn[slot]), shelves.time(slot)
            if now != was:  # chunks that came together are mostly used together
                if same:
                    self._gaps.met(was[0], clock - was[1], same)
                same, was = 0, now
            same += 1
            if hits < _MOST:
                self._hits[slot] = hits + 1
            self._unlink(slot)
            shelves.remove(slot)
            self._link(slot, shelves.first)
            self._enter(slot, None)
        if same:
            self._gaps.met(was[0], clock - was[1], same)
        # The duel wants them in prefix order.
        self._met.reverse()
        self._pending += len(keys)

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        slot = self._slots.pop(key)
        if evicted:
            time = self._shelves.time(slot)
            self._runs.add(self._root[slot], time, self._hits[slot], self._turn[slot])
        self._unlink(slot)
        self._shelves.remove(slot)
        self._keys[slot] = None
        self._free.append(slot)

    def victims(self) -> Iterator[ChunkKey]:
        slots = self._shelves.worst_first() if self._duel.worth_wins else self._least_recent()
        for slot in slots:
            key = self._keys[slot]
            if key is not None:
                yield key

    def _begin(self) -> None:
        """End the previous request: all of it counts now."""
        self._run, self._returning = None, (0, 0, 0)
        if not self._pending:
            return
        self._runs.fit(self._most)
        self._duel.fit(self._most)
        self._duel.play(self._met, self._clock, self._gaps)
        self._met = []
        self._clock += self._pending
        self._pending = 0
        self._gaps.advance(self._clock, self._most)
        self._shelves.advance(self._clock, self._gaps, self._most >> 6)

    def _recall(
        self, keys: Sequence[ChunkKey], parent: int | None
    ) -> Iterator[tuple[ChunkKey, int]]:
        """Yield each key and its name, after setting ``_run`` and ``_returning`` for it.

        A request that follows a chunk of an earlier one is another turn. A chunk that was here
        before is found by the name of its run: that of its first chunk or, if that is still here,
        its parent's.
        """
        broken: int | None = None
        if parent is not None and self._root[parent] != self._run:
            self._run, self._returning = None, (0, 0, min(self._turn[parent] + 1, _MOST))
            broken = self._root[parent]
        for key in keys:
            name = crc32(key)
            left, hits, turn = self._returning
            if left:
                self._returning = (left - 1, hits, turn)
            else:
                known, run = name, self._runs.take(name)
                if run is None and broken is not None:
                    known, run = broken, self._runs.take(broken)
                if run is not None:
                    kind = _class(run.hits, run.turn)
                    self._gaps.met(kind, self._clock - run.time, run.chunks)
                    self._run = known
                    self._returning = (run.chunks - 1, min(run.hits + 1, _MOST), run.turn)
                elif hits or self._run is None:
                    self._run = name
                    self._returning = (0, 0, min(turn + (hits > 0), _MOST))
            broken = None
            yield key, name

    def _enter(self, slot: int, below: int | None) -> None:
        """Put *slot* on the shelf of its class, just older than *below* if that is a neighbour."""
        kind = _class(self._hits[slot], self._turn[slot])
        self._gaps.enter(kind)
        if below is not None and (
            below == self._shelves.first
            or self._shelves.time(below) != self._clock
            or _class(self._hits[below], self._turn[below]) != kind
        ):
            below = None
        self._shelves.put(slot, kind, self._clock, below)
        if self._sample[slot] >= self._duel.shift:
            key = self._keys[slot]
            if key is not None:
                self._met.append((key, self._sample[slot], kind))

    def _take_slot(self, key: ChunkKey) -> int:
        if self._free:
            slot = self._free.pop()
            self._keys[slot] = key
        else:
            slot = self._shelves.grow()
            self._keys.append(key)
            for column in (self._newer, self._older, self._root):
                column.append(0)
            for small in (self._hits, self._turn, self._sample):
                small.append(0)
        self._slots[key] = slot
        return slot

    def _link(self, slot: int, newer: int) -> None:
        """Make *slot* just less recent than *newer*; below the top it is the most recent."""
        older = self._older[newer]
        self._older[slot], self._newer[slot] = older, newer
        self._newer[older] = self._older[newer] = slot

    def _unlink(self, slot: int) -> None:
        older, newer = self._older[slot], self._newer[slot]
        self._newer[older], self._older[newer] = newer, older

    def _least_recent(self) -> Iterator[int]:
        top = self._shelves.first
        slot = self._newer[top]
        while slot != top:
            yield slot
            slot = self._newer[slot]
