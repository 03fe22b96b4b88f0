"""Limit how often a chunk is sent before its receivers have to pass it on.

A chunk that many peers want at once goes to a few of them, and the others wait until these hold it:
then each of them sends it to a few, and so on. So its first holder sends it only a few times,
however many peers want it, and all have it after a number of rounds that grows with their
logarithm.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

from hexkv.ports import ChunkKey, Clock

_MOST = 1 << 16
"""The most chunks remembered."""


@dataclass(slots=True)
class _Reader:
    """A peer that receives, or received, a chunk."""

    under_way: int = 0
    """The number of transfers in progress: several if the chunk is sent by layers."""

    until: float = 0.0
    """The time until which it counts, once no transfer is in progress."""


_Readers = dict[str, _Reader]


class Copies:
    """The recent receivers of each chunk. Safe from any thread.

    Args:
        most: the most peers that may receive a chunk at a time; ``None``: any number.
        clock: the clock for *grace*.
        grace: seconds for which a receiver counts after the transfer: as long as it may take to
            store the chunk and to publish that it holds it.
    """

    def __init__(self, most: int | None, clock: Clock, grace: float) -> None:
        self._most = most
        self._clock = clock
        self._grace = grace
        self._lock = Lock()
        self._given: OrderedDict[ChunkKey, _Readers] = OrderedDict()

    def begin(self, sizes: Mapping[ChunkKey, int], who: str, most: int) -> dict[ChunkKey, int]:
        """Begin to send chunks of these *sizes* to *who*: the first ones, up to *most* bytes.

        Return the chunks begun, without those that enough other peers receive: these have to wait.
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
        """End transfers. If not *given* after all, they do not count."""
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
        """True while a chunk is sent to no new peer, because enough others receive it."""
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
        """Forget up to two expired chunks for each *begun*, and the oldest above the limit."""
        for _ in range(2 * begun):
            oldest = next(iter(self._given), None)
            if oldest is None or self._full(self._given[oldest], now) or self._given[oldest]:
                break
            del self._given[oldest]
        while len(self._given) > _MOST:
            self._given.popitem(last=False)

    def _full(self, given: _Readers, now: float) -> bool:
        """True if the most allowed readers count. Forgets those that no longer count."""
        over = [who for who, one in given.items() if not one.under_way and one.until <= now]
        for who in over:
            del given[who]
        return self._most is not None and len(given) >= self._most
