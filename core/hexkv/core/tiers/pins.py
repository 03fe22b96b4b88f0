"""Pins: chunks that somebody counts on, and that no tier may evict meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Clock, Deadline


class Pins:
    """The pins of every owner, over all tiers. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self.tiers: Sequence[Tier] = ()
        """All there are."""

        self.until: dict[str, float] = {}
        """When those of each owner end, where that is limited."""

        self.calls: set[str] = set()
        """Calls under way that may pin something."""

        self._clock = clock
        self._lock = Lock()

    def begin(self, owner: str) -> None:
        """From now on chunks may be pinned for the call *owner*, up to :meth:`end`."""
        self.calls.add(owner)

    def land(self, owner: str, tier: Tier, keys: Sequence[ChunkKey]) -> None:
        """Pin what a worker has just written until the call ends; nothing if it has ended.

        So that the end of a long prompt never pushes out its beginning.
        """
        with self._lock:
            if owner in self.calls:
                tier.index.pin(owner, keys)

    def end(self, owner: str) -> None:
        """A call is over: nothing is pinned in its name, now or later."""
        with self._lock:
            self.unpin(owner)
            self.calls.discard(owner)

    def pin(self, owner: str, keys: Sequence[ChunkKey], until: Deadline | None = None) -> int:
        """Keep chunks from eviction on every tier that holds them. How many there are.

        Args:
            owner: ends the pin by :meth:`unpin`.
            keys: the chunks.
            until: after which :meth:`expire` ends it, for owners that may vanish. Calls have
                none: theirs end with them.
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
        """Let go of all that *owner* pinned. How many pins there were, over all tiers."""
        self.until.pop(owner, None)
        return sum([tier.index.unpin(owner) for tier in self.tiers])

    def expire(self) -> None:
        """End the pins of owners that are past their time."""
        now = self._clock.now()
        for owner in [o for o, at in list(self.until.items()) if at <= now]:
            self.unpin(owner)

    def lasting(self) -> Mapping[str, tuple[Sequence[ChunkKey], float]]:
        """What each owner pins whose pins may last, and for how many seconds more."""
        found: dict[str, tuple[Sequence[ChunkKey], float]] = {}
        for owner, left in self.seconds().items():
            keys = {key for tier in self.tiers for key in tier.index.pinned_by(owner)}
            found[owner] = sorted(keys), left
        return found

    def seconds(self) -> Mapping[str, float]:
        """For how long the pins of each owner still last, where that is limited."""
        now = self._clock.now()
        return {owner: max(0.0, at - now) for owner, at in list(self.until.items())}
