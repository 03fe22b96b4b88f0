"""Keys in order, for listings that continue where they ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_LONGEST = 1024
"""The most keys of one run, which bounds the work of a change."""


class SortedKeys:
    """Distinct keys, in runs. The time of a call depends on its keys, not on all keys."""

    def __init__(self) -> None:
        self._runs: list[list[bytes]] = []
        self._firsts: list[bytes] = []
        """The first key of each run at its creation; the run has no key before it."""

    def add(self, key: bytes) -> None:
        """Add *key*, if it is absent."""
        if not self._runs:
            self._runs, self._firsts = [[]], [b""]
        number = self._run_of(key)
        run = self._runs[number]
        place = bisect_left(run, key)
        if place < len(run) and run[place] == key:
            return
        run.insert(place, key)
        if len(run) > _LONGEST:
            half = len(run) // 2
            self._runs.insert(number + 1, run[half:])
            self._firsts.insert(number + 1, run[half])
            del run[half:]

    def discard(self, key: bytes) -> None:
        """Remove *key*, if it is present."""
        if not self._runs:
            return
        number = self._run_of(key)
        run = self._runs[number]
        place = bisect_left(run, key)
        if place < len(run) and run[place] == key:
            del run[place]
            if not run and number:  # the first run holds all keys before the others
                del self._runs[number], self._firsts[number]

    def after(self, key: bytes, most: int) -> list[bytes]:
        """The next *most* keys behind *key*."""
        found: list[bytes] = []
        number = self._run_of(key) if self._runs else 0
        while number < len(self._runs) and len(found) < most:
            run = self._runs[number]
            start = bisect_right(run, key)
            found += run[start : start + most - len(found)]
            number += 1
        return found

    def _run_of(self, key: bytes) -> int:
        return bisect_right(self._firsts, key) - 1
