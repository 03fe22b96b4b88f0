"""How often a chunk is given away before others are left to give it on.

A chunk that many peers want at once goes to a few of them, and the others wait until these have
it: then each of them gives it to a few, and so on. So it leaves its first holder a few times,
however many want it, and all have it after a number of rounds that grows with their logarithm.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

from hexkv.ports import ChunkKey, Clock

_MOST = 1 << 16
"""Chunks that are remembered."""


@dataclass(slots=True)
class _Reader:
    """A peer that was given a chunk."""

    under_way: int = 0
    """Times that it is being given it now: by layers, it is many."""

    until: float = 0.0
    """Once none are: until when it counts."""


_Readers = dict[str, _Reader]


class Copies:
    """Who was given which chunks lately. Safe from any thread.

    Args:
        most: peers that may be given a chunk at a time; ``None``: any number.
        clock: for how long it counts.
        grace: seconds that it counts after it was given: as long as its reader may take to keep it,
            and to say so where others look for it.
    """

    def __init__(self, most: int | None, clock: Clock, grace: float) -> None:
        self._most = most
        self._clock = clock
        self._grace = grace
        self._lock = Lock()
        self._given: OrderedDict[ChunkKey, _Readers] = OrderedDict()

    def begin(self, sizes: Mapping[ChunkKey, int], who: str, most: int) -> dict[ChunkKey, int]:
        """Note that *who* is being given chunks of these *sizes*: the first ones of *most* bytes.

        Those; without any that enough others are being given, and that has to wait.
        """
        begun: dict[ChunkKey, int] = {}
        left = most
        with self._lock:
            now = self._clock.now()
            for key, size in sizes.items():
                if size <= left and (self._most is None or self._begin(key, who, now)):
                    begun[key] = size
                    left -= size
            self._prune(len(sizes), now)
        return begun

    def end(self, keys: Iterable[ChunkKey], who: str, *, given: bool = True) -> None:
        """They are not under way any more; if not *given* after all, they never counted."""
        if self._most is None:
            return
        with self._lock:
            now = self._clock.now()
            for key in keys:
                found = self._given.get(key)
                reader = None if found is None else found.get(who)
                if found is None or reader is None:
                    continue
                reader.under_way -= 1
                if given:
                    reader.until = now + self._grace
                if not reader.under_way and reader.until <= now:
                    del found[who]
                    if not found:
                        del self._given[key]

    def busy(self, key: ChunkKey) -> bool:
        """True while nobody new is given a chunk, because enough others are."""
        if self._most is None:
            return False
        with self._lock:
            given = self._given.get(key)
            return given is not None and self._full(given, self._clock.now())

    def _begin(self, key: ChunkKey, who: str, now: float) -> bool:
        given = self._given.setdefault(key, {})
        self._given.move_to_end(key)
        reader = given.get(who)
        if reader is None:
            if self._full(given, now):
                return False
            reader = given[who] = _Reader()
        reader.under_way += 1
        return True

    def _prune(self, begun: int, now: float) -> None:
        """Forget two chunks for each *begun* that do not count any more, and what is too much."""
        for _ in range(2 * begun):
            oldest = next(iter(self._given), None)
            if oldest is None or self._full(self._given[oldest], now) or self._given[oldest]:
                break
            del self._given[oldest]
        while len(self._given) > _MOST:
            self._given.popitem(last=False)

    def _full(self, given: _Readers, now: float) -> bool:
        """True if as many readers count as there may be. Forgets those that do not."""
        over = [who for who, one in given.items() if not one.under_way and one.until <= now]
        for who in over:
            del given[who]
        return self._most is not None and len(given) >= self._most
