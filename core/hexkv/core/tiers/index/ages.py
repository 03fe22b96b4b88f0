"""The time for which chunks stay unused on a tier before they are used again or evicted.

Only a sample of the chunks is observed: those whose digest ends in some zero bits, one bit more as
soon as the sample grows too large. So the contents of a tier are sampled evenly, whatever its size
(SHARDS with a fixed size; Waldspurger et al., FAST 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.ports import ChunkKey, Clock, HistogramName, Telemetry

_MOST = 128
"""Each sampled chunk is one observation in every request that uses it."""

_DIGITS = 4
"""The number of bytes at the end of a key that decide if its chunk is in the sample."""


class _Sample:
    """The last use of each sampled chunk of one tier."""

    __slots__ = ("mask", "used")

    def __init__(self) -> None:
        self.mask = 0
        self.used: dict[ChunkKey, float] = {}


class Ages:
    """Observes the ages of chunks, by tier. Safe from any thread."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        """Report to *telemetry*, by *clock*."""
        self._clock = clock
        self._telemetry = telemetry
        self._tiers: dict[str, _Sample] = {}
        self._lock = Lock()

    def stored(self, tier: str, keys: Sequence[ChunkKey]) -> None:
        """Note that *tier* holds these chunks now; this is their first use."""
        now = self._clock.now()
        with self._lock:
            sample = self._tiers.get(tier)
            if sample is None:
                sample = self._tiers[tier] = _Sample()
            for key in keys:
                if sample.mask and _digits(key) & sample.mask:
                    continue
                sample.used[key] = now
                while len(sample.used) > _MOST:
                    sample.mask = sample.mask << 1 | 1
                    sample.used = {
                        key: when
                        for key, when in sample.used.items()
                        if not _digits(key) & sample.mask
                    }

    def used(self, tiers: Sequence[str], keys: Sequence[ChunkKey]) -> None:
        """Note that one request used these chunks, on any of *tiers*."""
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
        """Note that these chunks were evicted from *tier*."""
        sample = self._tiers.get(tier)
        if sample is None:
            return
        now = self._clock.now()
        with self._lock:
            since = [when for key in keys if (when := sample.used.pop(key, None)) is not None]
        for when in since:
            self._telemetry.observe(HistogramName.EVICTED_AGE, now - when, tier=tier)

    def gone(self, tier: str, keys: Sequence[ChunkKey]) -> None:
        """Note that these chunks left *tier* for a reason other than eviction."""
        sample = self._tiers.get(tier)
        if sample is not None:
            with self._lock:
                for key in keys:
                    sample.used.pop(key, None)


def _digits(key: ChunkKey) -> int:
    return int.from_bytes(key[-_DIGITS:], "little")
