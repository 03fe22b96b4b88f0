"""Admission: which chunks are worth writing to a tier, by what became of others like them.

A chunk's kind is the turn of the conversation that brought it (how many requests of others' chunks
came before it) and how often it was met since. Of each kind a sample of what was offered to the
tier is remembered, written or not, until it is met again or as much was written after it as the
tier holds. The share that was met is the chance of the kind. Before much was seen every kind is
worth writing.

The idea of a reject-first disk cache that learns what it is asked for again is Flashield's
(Eisenman et al., NSDI 2019); the kinds are those of the policy ``adaptive``.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey

_MOST_KNOWN = 1 << 16
"""Chunks whose kind is remembered."""

_SAMPLE = 1 << 12
"""Offered chunks of which it is remembered that they were."""

_LATELY = 1024
"""Offered chunks."""

_LEAST_WRITTEN = 1 / 16
"""The least part of them that is reckoned with."""

_PRIOR = 32
"""Chunks met again that are believed in before any was seen."""

_HALVE = 4096
"""Observations of a kind after which they count half."""

_UNKNOWN = 1 << 16
"""Chunks that a tier is taken to hold whose budget is not known."""

_TURNS = 4
_HITS = 3


class Admission:
    """Learns the chances of the kinds. Safe from any thread.

    Args:
        least: the chance to be met again from which on a chunk is worth writing.
    """

    def __init__(self, least: float) -> None:
        self.least = least
        self._known: dict[ChunkKey, int] = {}
        """Kinds, as ``_HITS * turn + hits``; those met longest ago come first. What is not in
        here came from elsewhere, as after a restart: it is written, and teaches nothing."""

        self._offered: dict[ChunkKey, int] = {}
        self._mask = 0
        self._written = 1.0
        """The part of the chunks offered lately that was written."""

        self._last: tuple[ChunkKey, ChunkKey] | None = None
        self._met = [0.0] * (_TURNS * _HITS)
        self._seen = [0.0] * (_TURNS * _HITS)
        self._lock = Lock()

    def added(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """These chunks were computed, behind *after* in their prompt."""
        with self._lock:
            turn, hits = divmod(self._known.get(after, 0) if after is not None else 0, _HITS)
            turn = min(turn + (hits > 0), _TURNS - 1)
            for key in keys:
                self._settle(key)  # what is computed anew was wanted, and not there
                self._remember(key, _HITS * turn)

    def met(self, keys: Sequence[ChunkKey]) -> None:
        """One request met these chunks, on whatever tier; a second word of it counts no more."""
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
        """Whether to write a chunk that the tier is offered now, and holds about so many *chunks*.

        The less of what it is offered is written, the longer each chunk stays on the tier.
        """
        with self._lock:
            horizon = int(chunks / max(self._written, _LEAST_WRITTEN))
            mask = (1 << max(0, (horizon // _SAMPLE).bit_length())) - 1
            if mask != self._mask:  # of a smaller sample all stay, and a larger one fills up
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
        """A chunk is wanted: if it was offered, its kind was right to be written."""
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
    """Those of the tiers that take what others evict, and not all of it. Safe from any thread."""

    def __init__(self) -> None:
        self.by_tier: dict[str, Admission] = {}
        """Of each tier that once had to choose."""

    def added(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """See :meth:`Admission.added`."""
        for admission in list(self.by_tier.values()):
            admission.added(keys, after)

    def met(self, keys: Sequence[ChunkKey]) -> None:
        """See :meth:`Admission.met`; *keys* are some."""
        for admission in list(self.by_tier.values()):
            admission.met(keys)

    def worth(self, tier: Tier, key: ChunkKey) -> bool:
        """Whether an evicted chunk is worth writing to *tier*; learns from the first one on."""
        least = tier.rules.min_reuse
        if not least:
            return True
        admission = self.by_tier.get(tier.name)
        if admission is None or admission.least != least:
            admission = self.by_tier[tier.name] = Admission(least)
        return admission.worth(key, _holds(tier))


def _holds(tier: Tier) -> int:
    """How many chunks *tier* holds when it is full, as far as that is known."""
    count, used, budget = len(tier.index), tier.index.used, tier.index.budget
    if budget is None or not count:
        return _UNKNOWN
    return max(1, budget * count // max(1, used))


def _digits(key: ChunkKey) -> int:
    return int.from_bytes(key[-4:])
