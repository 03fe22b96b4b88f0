"""Prefetching: chunks are read into leased blocks before anybody waits for them.

A prefetch is known by the id that its lookup has in the serving engine. It never blocks
its caller and never waits for memory: it takes what is free up to a share of the pool, and
a retrieve reads the rest. What nobody picks up within a time limit is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf
from threading import Lock

from hexkv.core.io.rules import Priority
from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.prefix import Prefix, match_prefix_soon
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.pending_reads import PendingRead
from hexkv.ports import ChunkKey, CounterName, Deadline

AT_ONCE = 0.02
"""Seconds that a prefetch may take to name its prompt, in its caller's thread: enough for about a
million tokens in chunks of 256. One that takes longer is not begun; its retrieve reads it all."""


@dataclass(frozen=True, slots=True)
class PrefetchRules:
    """How much memory prefetches take, and for how long."""

    share: float = 0.25
    """Part of the pool's slots that all prefetches together hold at most."""

    seconds: float = 60.0
    """After which a prefetch that nobody picked up is given back."""


@dataclass(slots=True)
class _Prefetch:
    read: Deadline
    expires: float
    claims: dict[ChunkKey, PendingRead] = field(default_factory=dict)
    asking: int = 0
    """Chunks for which it is about to ask."""

    hit_tokens: int | None = None
    gone: bool = False


class Prefetches:
    """Every prefetch that nobody has picked up yet. Safe from any thread."""

    def __init__(self, stack: TierStack, rules: PrefetchRules) -> None:
        self._stack = stack
        self._rules = rules
        self._clock = stack.runtime.clock
        self._most = max(1, int(stack.pool.slots * rules.share)) if rules.share > 0 else 0
        self.waiting: dict[str, _Prefetch] = {}
        self._decoded: Collection[str] = ()
        self._lock = Lock()

    def begin(self, lookup_id: str, name: Callable[[], Prompt], read: Deadline) -> int | None:
        """Start reading what the tiers hold of a prompt; asking again under one id starts nothing.

        Only the first time is its prompt named.

        Returns:
            how many tokens the tiers hold from the prompt's beginning; ``None`` while a tier
            that only its store can speak for has not answered.
        """
        # Worker threads may name tails of it after the call.
        prompt = None if lookup_id in self.waiting else name()
        with self._lock:
            known = self.waiting.get(lookup_id)
            if known is not None:
                late = known.hit_tokens is None and known.read.expired
                return 0 if late else known.hit_tokens
            if prompt is None:
                return 0  # it was taken or cancelled at this very moment
            entry = _Prefetch(read, self._clock.now() + self._rules.seconds)
            self.waiting[lookup_id] = entry

        def start(prefix: Prefix) -> None:
            self._start(entry, prefix, lookup_id)

        match_prefix_soon(self._stack, prompt, read, start)
        return entry.hit_tokens

    def take(self, lookup_id: str, decoded: Collection[str] = ()) -> dict[ChunkKey, PendingRead]:
        """What was read for *lookup_id*: the caller settles or drops every claim.

        *decoded* are the serdes that the caller's device decodes. The prefetches that follow leave
        their frames as they are: an engine's devices are of one kind, or else whoever settles
        such a claim decodes it.
        """
        self._decoded = decoded
        return self._take(lookup_id)

    def _take(self, lookup_id: str) -> dict[ChunkKey, PendingRead]:
        with self._lock:
            entry = self.waiting.get(lookup_id)
            if entry is None:
                return {}
            # First of all: whatever comes now, the claims are this call's alone, and end with it.
            claims, entry.claims = entry.claims, {}
            entry.gone = True
            del self.waiting[lookup_id]
            return claims

    def cancel(self, lookup_id: str) -> bool:
        """Give everything back. Whether there was such a prefetch."""
        with self._lock:
            here = lookup_id in self.waiting
        for claim in self._take(lookup_id).values():
            claim.drop()
        return here

    def reap(self) -> bool:
        """Cancel what is past its time. Whether there was any."""
        if not self.waiting:
            return False
        now = self._clock.now()
        with self._lock:
            late = [name for name, entry in self.waiting.items() if entry.expires <= now]
        for name in late:
            self.cancel(name)
        return bool(late)

    def first_end(self) -> float:
        """When the first of them is past its time, by the clock; infinity for never."""
        return min((entry.expires for entry in list(self.waiting.values())), default=inf)

    def close(self) -> None:
        """Cancel everything."""
        with self._lock:
            names = list(self.waiting)
        for name in names:
            self.cancel(name)

    def __len__(self) -> int:
        return len(self.waiting)

    def _start(self, entry: _Prefetch, prefix: Prefix, lookup_id: str) -> None:
        """Begin the reads; called by the asking thread, or by the worker that peeked."""
        prompt, found = prefix.found, prefix.tiers
        with self._lock:
            held = sum(max(other.asking, len(other.claims)) for other in self.waiting.values())
            free = self._most - held
            # What memory holds is there at once; taking blocks for it would only pin it.
            first = next((i for i, tier in enumerate(found) if not tier.lends), len(found))
            end = min(len(found), first + max(0, free))
            if entry.gone:
                return
            entry.asking = end - first
        claims = self._stack.begin(
            prompt.specs(first, end),
            found[first:end],
            f"prefetch {lookup_id}",
            entry.read,
            Priority.PREFETCH,
            encoded=self._decoded,
        )
        with self._lock:
            entry.asking = 0
            if not entry.gone:
                entry.claims = {claim.spec.key: claim for claim in claims}
                claims = []
            entry.hit_tokens = prefix.tokens
        for claim in claims:
            claim.drop()


def make_room(stack: TierStack, prefetches: Prefetches, size: int) -> bool:
    """The pool's reclaim: what nobody picked up goes first, then what memory can spare."""
    made = prefetches.reap() or stack.make_room(size)
    if made:
        stack.runtime.telemetry.count(CounterName.POOL_RECLAIMS, 1)
    return made
