"""Pins: chunks in use, which no tier may evict until their pins end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Clock, Deadline


class Pins:
    """The pins of every owner, over all tiers. Safe from any thread.

    Args:
        clock: for pins with a time limit.
        on_unpinned: called with a tier after pins ended there: what they kept beyond its budget
            is to be evicted. Never blocks.
    """

    def __init__(self, clock: Clock, on_unpinned: Callable[[Tier], None]) -> None:
        self.tiers: Sequence[Tier] = ()
        """All tiers."""

        self.until: dict[str, float] = {}
        """The time at which the pins of each owner end, if it is limited."""

        self.calls: set[str] = set()
        """Calls in progress that may pin chunks."""

        self._clock = clock
        self._on_unpinned = on_unpinned
        self._lock = Lock()

    def begin(self, owner: str) -> None:
        """Allow pins for the call *owner* from now on, until :meth:`end`."""
        self.calls.add(owner)

    def land(self, owner: str, tier: Tier, keys: Sequence[ChunkKey]) -> None:
        """Pin chunks that a worker has just written until the call ends; no effect if it has ended.

        So the end of a long prompt never evicts its beginning.
        """
        with self._lock:
            if owner in self.calls:
                tier.index.pin(owner, keys)

    def end(self, owner: str) -> None:
        """End a call: unpin its chunks, and allow no further pins for it."""
        with self._lock:
            ended = self._unpin(owner)
            self.calls.discard(owner)
        for tier in ended:
            self._on_unpinned(tier)

    def pin(self, owner: str, keys: Sequence[ChunkKey], until: Deadline | None = None) -> int:
        """Keep chunks from eviction on every tier that holds them. Return their number.

        Args:
            owner: ends the pin by :meth:`unpin`.
            keys: the chunks.
            until: the time at which :meth:`expire` ends it, for owners that may vanish. Calls have
                none: their pins end with them.
        """
        if until is None:
            self.begin(owner)
        else:
            self.until[owner] = until.at
        here: set[ChunkKey] = set()
        for tier in self.tiers:
            if tier.index.pin(owner, keys):
                known = tier.index.contains(keys)
                here.update(key for key, there in zip(keys, known, strict=True) if there)
        return len(here)

    def unpin(self, owner: str) -> int:
        """End all pins of *owner*. Return their number, over all tiers."""
        ended = self._unpin(owner)
        for tier in ended:
            self._on_unpinned(tier)
        return sum(ended.values())

    def _unpin(self, owner: str) -> Mapping[Tier, int]:
        """End all pins of *owner*. Return their number on each tier that had some."""
        self.until.pop(owner, None)
        return {tier: ended for tier in self.tiers if (ended := tier.index.unpin(owner))}

    def expire(self) -> None:
        """End the pins of owners whose time is over."""
        now = self._clock.now()
        for owner in [o for o, at in list(self.until.items()) if at <= now]:
            self.unpin(owner)

    def lasting(self) -> Mapping[str, tuple[Sequence[ChunkKey], float]]:
        """The pinned chunks of each owner with a time limit, and the seconds left."""
        found: dict[str, tuple[Sequence[ChunkKey], float]] = {}
        for owner, left in self.seconds().items():
            keys = {key for tier in self.tiers for key in tier.index.pinned_by(owner)}
            found[owner] = sorted(keys), left
        return found

    def seconds(self) -> Mapping[str, float]:
        """The seconds left of each owner's pins, where that is limited."""
        now = self._clock.now()
        return {owner: max(0.0, at - now) for owner, at in list(self.until.items())}
