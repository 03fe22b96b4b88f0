"""Prefetches: reads of chunks into leased blocks before a retrieve waits for them.

A prefetch has the id of its lookup in the serving engine. It never blocks its caller and never
waits for memory: it takes free blocks up to a share of the pool, and a retrieve reads the rest.
Blocks that no retrieve takes within a time limit are released.
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
from hexkv.core.tiers.read.pending_reads import PendingRead
from hexkv.ports import ChunkKey, CounterName, Deadline

AT_ONCE = 0.02
"""Seconds that a prefetch may take to name its prompt, in its caller's thread: enough for about a
million tokens in chunks of 256. A longer one is not begun; its retrieve then reads all chunks."""


@dataclass(frozen=True, slots=True)
class PrefetchRules:
    """How much memory prefetches take, and for how long."""

    share: float = 0.25
    """The largest share of the pool's slots that all prefetches together hold."""

    seconds: float = 60.0
    """Seconds after which a prefetch that no retrieve took is released."""


@dataclass(slots=True)
class _Prefetch:
    read: Deadline
    expires: float
    claims: dict[ChunkKey, PendingRead] = field(default_factory=dict)
    asking: int = 0
    """The number of chunks that it is about to request."""

    hit_tokens: int | None = None
    gone: bool = False


class Prefetches:
    """Every prefetch that no retrieve has taken yet. Safe from any thread."""

    def __init__(self, stack: TierStack, rules: PrefetchRules) -> None:
        self._stack = stack
        self._rules = rules
        self._clock = stack.runtime.clock
        self._most = max(1, int(stack.pool.slots * rules.share)) if rules.share > 0 else 0
        self.waiting: dict[str, _Prefetch] = {}
        self._decoded: Collection[str] = ()
        self._lock = Lock()

    def begin(self, lookup_id: str, name: Callable[[], Prompt], read: Deadline) -> int | None:
        """Begin to read the chunks of a prompt on the tiers; a second call of an id begins nothing.

        Only the first call of an id runs *name*.

        Returns:
            The number of tokens that the tiers hold from the prompt's beginning; ``None`` while
            a tier whose content only its store knows has not answered.
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
        """Return the reads for *lookup_id*: the caller settles or drops every claim.

        *decoded* are the serdes that the caller's device decodes. Later prefetches leave their
        frames encoded: an engine's devices are usually of one kind, and otherwise the settling of
        such a claim decodes it.
        """
        self._decoded = decoded
        return self._take(lookup_id)

    def _take(self, lookup_id: str) -> dict[ChunkKey, PendingRead]:
        with self._lock:
            entry = self.waiting.get(lookup_id)
            if entry is None:
                return {}
            # First: from now on the claims belong to this call alone, and end with it.
            claims, entry.claims = entry.claims, {}
            entry.gone = True
            del self.waiting[lookup_id]
            return claims

    def cancel(self, lookup_id: str) -> bool:
        """Release everything. True if there was such a prefetch."""
        with self._lock:
            here = lookup_id in self.waiting
        for claim in self._take(lookup_id).values():
            claim.drop()
        return here

    def reap(self) -> bool:
        """Cancel expired prefetches. True if there were any."""
        if not self.waiting:
            return False
        now = self._clock.now()
        with self._lock:
            late = [name for name, entry in self.waiting.items() if entry.expires <= now]
        for name in late:
            self.cancel(name)
        return bool(late)

    def first_end(self) -> float:
        """Return when the first of them expires, by the clock; infinity for never."""
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
        """Begin the reads, on the caller's thread or on the worker that queried the last store."""
        prompt, found = prefix.found, prefix.tiers
        with self._lock:
            held = sum(max(other.asking, len(other.claims)) for other in self.waiting.values())
            free = self._most - held
            # Chunks in memory need no read; taking blocks for them would only pin them.
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
    """Make room in the pool: cancel expired prefetches, or else evict from memory."""
    made = prefetches.reap() or stack.make_room(size)
    if made:
        stack.runtime.telemetry.count(CounterName.POOL_RECLAIMS, 1)
    return made
