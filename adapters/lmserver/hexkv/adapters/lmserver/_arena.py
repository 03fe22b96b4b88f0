"""One region of memory, taken once and handed out in blocks.

The first touch of a fresh page costs four times as much as a copy into a used one, so no
value ever gets memory of its own. A block is made of grains, wherever they are free: there
is no hole too small, so what the budget allows always fits. Blocks are counted: memory comes
back when the last holder, a slow reader perhaps, lets go.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from threading import Condition
from types import TracebackType
from typing import Self

from hexkv.ports import MemoryRegion

GRAIN = 16 << 10
"""Bytes of the smallest piece."""

_TRIES = 64
"""Free runs that are looked at for one that is long enough."""


def room(size: int) -> int:
    """Bytes of memory that a value of *size* takes: a grain at least, so empty ones end, too."""
    return max(1, -(-size // GRAIN)) * GRAIN


class Block:
    """Memory for one value, held by one or more."""

    __slots__ = ("_arena", "_holders", "_runs", "size", "views")

    def __init__(
        self, arena: Arena, runs: Sequence[tuple[int, int]], views: list[memoryview], size: int
    ) -> None:
        self._arena = arena
        self._runs = runs
        self._holders = 1
        self.views = views
        self.size = size

    def share(self) -> Block:
        """The same block, to be released once more."""
        with self._arena.freed:
            self._holders += 1
        return self

    def release(self) -> None:
        """Let go, once for each time it was taken or shared."""
        with self._arena.freed:
            self._holders -= 1
            if not self._holders:
                self.views.clear()
                self._arena.give_back(self._runs)

    def part(self, start: int, size: int) -> list[memoryview]:
        """Views of a range of the value, which must lie within it."""
        found = []
        for view in self.views:
            length = len(view)
            if start < length and size:
                piece = view[start : start + size]
                found.append(piece)
                size -= len(piece)
            start = max(0, start - length)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Arena:
    """Hands out the blocks of one region. Safe from any thread; the region stays its owner's."""

    def __init__(self, region: MemoryRegion) -> None:
        self._buffer = region.buffer
        grains = len(self._buffer) // GRAIN
        self._free = grains
        self._starts = {0: grains} if grains else {}
        """Free runs: the grain after the last, by the first."""
        self._ends = {grains: 0} if grains else {}
        self.freed = Condition()
        """Held for every change; notified when memory comes back."""

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self._free * GRAIN

    def take(self, size: int, seconds: float, *, whole: bool = False) -> Block | None:
        """A block for *size* bytes, or ``None`` if there is none for so many seconds.

        Args:
            size: bytes of the value.
            seconds: of real time to wait for others to let go.
            whole: give one contiguous view, and wait for one if need be.
        """
        grains = room(size) // GRAIN
        with self.freed:
            if not self.freed.wait_for(lambda: self._has(grains, whole), seconds):
                return None
            runs = self._take(grains, whole)
        views, left = [], size
        for start, end in runs:
            length = min(left, (end - start) * GRAIN)
            if length:
                views.append(self._buffer[start * GRAIN : start * GRAIN + length])
            left -= length
        return Block(self, runs, views, size)

    def give_back(self, runs: Sequence[tuple[int, int]]) -> None:
        """Runs of a block that nobody holds any more. Called with ``freed`` held."""
        for first, last in runs:
            start, end = first, last
            self._free += end - start
            if start in self._ends:
                start = self._ends.pop(start)
                del self._starts[start]
            if end in self._starts:
                end = self._starts.pop(end)
                del self._ends[end]
            self._starts[start] = end
            self._ends[end] = start
        self.freed.notify_all()

    def _has(self, grains: int, whole: bool) -> bool:
        if not whole:
            return self._free >= grains
        return any(end - start >= grains for start, end in self._starts.items())

    def _take(self, grains: int, whole: bool) -> list[tuple[int, int]]:
        tries = self._starts.items() if whole else islice(self._starts.items(), _TRIES)
        for start, end in tries:
            if end - start >= grains:
                return [self._cut(start, start + grains)]
        runs = []
        while grains:
            start, end = next(iter(self._starts.items()))
            runs.append(self._cut(start, min(end, start + grains)))
            grains -= runs[-1][1] - start
        return runs

    def _cut(self, start: int, end: int) -> tuple[int, int]:
        last = self._starts.pop(start)
        del self._ends[last]
        if end < last:
            self._starts[end] = last
            self._ends[last] = end
        self._free -= end - start
        return start, end
