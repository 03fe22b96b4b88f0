"""How long chunks stay unused on a tier before they are used again, or evicted.

Of a sample of the chunks: those whose digest ends in some zero bits, and in one more as soon as
there would be too many. So what a tier holds is sampled evenly, however much that is (SHARDS with a
fixed size; Waldspurger et al., FAST 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.ports import ChunkKey, Clock, HistogramName, Telemetry

_MOST = 128
"""Each chunk in the sample is an observation of its own, in every request that meets it."""

_DIGITS = 4
"""Bytes at the end of a key that decide whether its chunk is in the sample."""


class _Sample:
    """When the sampled chunks of one tier were last used."""

    __slots__ = ("mask", "used")

    def __init__(self) -> None:
        self.mask = 0
        self.used: dict[ChunkKey, float] = {}


class Ages:
    """Observes the ages of chunks, by tier. Safe from any thread."""

    def __init__(self, clock: Clock, telemetry: Telemetry, most: int = _MOST) -> None:
        """Keep up to *most* chunks of each tier in mind."""
        self._clock = clock
        self._telemetry = telemetry
        self._most = most
        self._tiers: dict[str, _Sample] = {}
        self._lock = Lock()

    def stored(self, tier: str, keys: Sequence[ChunkKey]) -> None:
        """These chunks are on *tier* now; that is their first use."""
        now = self._clock.now()
        with self._lock:
            sample = self._tiers.get(tier)
            if sample is None:
                sample = self._tiers[tier] = _Sample()
            for key in keys:
                if sample.mask and _digits(key) & sample.mask:
                    continue
                sample.used[key] = now
                while len(sample.used) > self._most:
                    sample.mask = sample.mask << 1 | 1
                    sample.used = {
                        key: when
                        for key, when in sample.used.items()
                        if not _digits(key) & sample.mask
                    }

    def used(self, tiers: Sequence[str], keys: Sequence[ChunkKey]) -> None:
        """One request met these chunks, whichever of *tiers* they are on."""
        now = self._clock.now()
        for tier in tiers:
            sample = self._tiers.get(tier)
            if sample is None or not sample.used:
                continue
            with self._lock:
                met = sample.used.keys() & keys
                gaps = [now - sample.used[key] for key in met]
                sample.used.update(dict.fromkeys(met, now))
            for gap in gaps:
                self._telemetry.observe(HistogramName.REUSE_GAP, gap, tier=tier)

    def evicted(self, tier: str, keys: Sequence[ChunkKey]) -> None:
        """These chunks gave way to others."""
        sample = self._tiers.get(tier)
        if sample is None:
            return
        now = self._clock.now()
        with self._lock:
            since = [when for key in keys if (when := sample.used.pop(key, None)) is not None]
        for when in since:
            self._telemetry.observe(HistogramName.EVICTED_AGE, now - when, tier=tier)

    def gone(self, tier: str, keys: Sequence[ChunkKey]) -> None:
        """These chunks left *tier* for another reason."""
        sample = self._tiers.get(tier)
        if sample is not None:
            with self._lock:
                for key in keys:
                    sample.used.pop(key, None)


def _digits(key: ChunkKey) -> int:
    return int.from_bytes(key[-_DIGITS:], "little")
