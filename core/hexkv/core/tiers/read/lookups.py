"""The tiers that serve a request, the same ones for its lookup and for its retrieve.

Rates and probes change between the two. So the answer to a question is kept under the last chunk
asked for, and under the last one found, until these chunks are loaded: a request is one question to
a slow tier, and what its lookup found is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Clock

KEPT = 60.0
"""Seconds for which an answer holds."""

_MOST = 1024


class LookupAnswers:
    """The tiers of the last questions. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[ChunkKey, tuple[float, Sequence[Tier]]] = {}
        self._lock = Lock()

    def keep(self, key: ChunkKey, tiers: Sequence[Tier]) -> None:
        """Keep the answer to a question that ends with chunk *key*."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = self._clock.now(), tiers
            if len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]

    def find(self, key: ChunkKey, *, take: bool) -> Sequence[Tier] | None:
        """Return the answer for *key* or ``None``; *take*: and forget it."""
        with self._lock:
            kept = self._kept.pop(key, None) if take else self._kept.get(key)
        return None if kept is None or self._clock.now() - kept[0] > KEPT else kept[1]
