"""Admission: which chunks are worth writing to a tier, learned from the reuse of similar chunks.

A chunk's kind is the conversation turn that brought it (the number of earlier requests whose chunks
precede it in the prompt) and the number of its hits since. For each kind, a sample of the chunks
offered to the tier is remembered, written or not, until the chunk is used again or as much was
written after it as the tier holds. The share that was used again is the chance of the kind. Until
enough is observed, every kind is worth writing.

The idea of a reject-first disk cache that learns which chunks are reused is Flashield's (Eisenman
et al., NSDI 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey

_MOST_KNOWN = 1 << 16
"""The most chunks whose kind is remembered."""

_SAMPLE = 1 << 12
"""The target number of offered chunks in the sample."""

_LATELY = 1024
"""The number of offered chunks over which the written share is averaged."""

_LEAST_WRITTEN = 1 / 16
"""The smallest written share used to compute the horizon."""

_PRIOR = 32
"""The number of reused chunks assumed for each kind before any is observed."""

_HALVE = 4096
"""The number of observations of a kind after which its counts are halved."""

_UNKNOWN = 1 << 16
"""The number of chunks that a tier with an unknown budget is assumed to hold."""

_TURNS = 4
_HITS = 3


class Admission:
    """Learn the chance of reuse of each kind. Safe from any thread.

    Args:
        least: the least chance of reuse at which a chunk is worth writing.
    """

    def __init__(self, least: float) -> None:
        self.least = least
        self._known: dict[ChunkKey, int] = {}
        """Kinds, as ``_HITS * turn + hits``, least recently used first. A chunk that is not in here
        came from elsewhere, as after a restart: it is written, and nothing is learned from it."""

        self._offered: dict[ChunkKey, int] = {}
        self._mask = 0
        self._written = 1.0
        """The share of the recently offered chunks that was written."""

        self._last: tuple[ChunkKey, ChunkKey] | None = None
        self._met = [0.0] * (_TURNS * _HITS)
        self._seen = [0.0] * (_TURNS * _HITS)
        self._lock = Lock()

    def added(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """Note that these chunks were computed, after the chunk *after* in their prompt."""
        with self._lock:
            turn, hits = divmod(self._known.get(after, 0) if after is not None else 0, _HITS)
            turn = min(turn + (hits > 0), _TURNS - 1)
            for key in keys:
                self._settle(key)  # a chunk computed again was wanted, and missing
                self._remember(key, _HITS * turn)

    def met(self, keys: Sequence[ChunkKey]) -> None:
        """Note that one request used these chunks, on any tier; a repeated call does not count."""
        with self._lock:
            if (keys[0], keys[-1]) == self._last:  # retrieved, then stored
                return
            self._last = keys[0], keys[-1]
            for key in keys:
                self._settle(key)
                kind = self._known.get(key)
                if kind is not None:
                    self._remember(key, kind + (kind % _HITS < _HITS - 1))

    def worth(self, key: ChunkKey, chunks: int) -> bool:
        """True if a chunk offered to the tier now is worth writing; the tier holds about *chunks*.

        The smaller the share of offered chunks that is written, the longer each stays on the tier.
        """
        with self._lock:
            horizon = int(chunks / max(self._written, _LEAST_WRITTEN))
            mask = (1 << max(0, (horizon // _SAMPLE).bit_length())) - 1
            if mask != self._mask:  # all of a smaller sample stay; a larger one fills up
                self._mask = mask
                self._offered = {k: v for k, v in self._offered.items() if not _digits(k) & mask}
            kind = self._known.get(key)
            write = kind is None or self._chance(kind) >= self.least
            self._written += (write - self._written) / _LATELY
            if kind is not None and not _digits(key) & mask:
                self._offered[key] = kind
            while len(self._offered) > max(1, horizon // (mask + 1)):
                self._observe(self._offered.pop(next(iter(self._offered))), met=False)
        return write

    def _chance(self, kind: int) -> float:
        return (self._met[kind] + _PRIOR) / (self._seen[kind] + _PRIOR)

    def _remember(self, key: ChunkKey, kind: int) -> None:
        self._known.pop(key, None)
        self._known[key] = kind
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _settle(self, key: ChunkKey) -> None:
        """Note that a chunk is wanted: if it was offered, its kind was worth writing."""
        kind = self._offered.pop(key, None)
        if kind is not None:
            self._observe(kind, met=True)

    def _observe(self, kind: int, *, met: bool) -> None:
        self._seen[kind] += 1
        self._met[kind] += met
        if self._seen[kind] >= _HALVE:
            self._seen[kind] /= 2
            self._met[kind] /= 2


class Admissions:
    """One :class:`Admission` for each tier that takes some of the evicted chunks. Thread-safe."""

    def __init__(self) -> None:
        self.by_tier: dict[str, Admission] = {}
        """Only tiers with a least chance of reuse, from their first offered chunk on."""

    def added(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """See :meth:`Admission.added`."""
        for admission in list(self.by_tier.values()):
            admission.added(keys, after)

    def met(self, keys: Sequence[ChunkKey]) -> None:
        """See :class:`Admission`; *keys* is not empty."""
        for admission in list(self.by_tier.values()):
            admission.met(keys)

    def worth(self, tier: Tier, key: ChunkKey) -> bool:
        """True if an evicted chunk is worth writing to *tier*; learns from the first call on."""
        least = tier.rules.min_reuse
        if not least:
            return True
        admission = self.by_tier.get(tier.name)
        if admission is None or admission.least != least:
            admission = self.by_tier[tier.name] = Admission(least)
        return admission.worth(key, _holds(tier))


def _holds(tier: Tier) -> int:
    """The number of chunks that *tier* holds when full, estimated from its index."""
    count, used, budget = len(tier.index), tier.index.used, tier.index.budget
    if budget is None or not count:
        return _UNKNOWN
    return max(1, budget * count // max(1, used))


def _digits(key: ChunkKey) -> int:
    return int.from_bytes(key[-4:])
