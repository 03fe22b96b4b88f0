"""The tier stack: every tier writes, the first that answers reads, the faster ones learn.

Write-all keeps eviction simple: what one tier drops the slower ones still have, so nothing
has to sink on the way out. Reading is a waterfall over the tiers in order, chunk by chunk;
a chunk counts as a hit only when its frame has arrived and was verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hexkv.core.arrivals import Loaded, PoolSink
from hexkv.core.frames import FrameCodec
from hexkv.core.pool import BlockLease, BlockPool
from hexkv.core.prompts import Prompt
from hexkv.core.tiers import Tier
from hexkv.ports import (
    CacheEvent,
    Change,
    ChunkKey,
    Clock,
    Corrupt,
    CorruptFrame,
    Counter,
    Deadline,
    EventSink,
    Failed,
    FrameHeader,
    Histogram,
    Hit,
    Item,
    Miss,
    MissReason,
    ReadOutcome,
    Stored,
    Telemetry,
    TimedOut,
    WriteOutcome,
)

RAW = "raw"


@dataclass(slots=True)
class TierStack:
    """Tiers from fastest to slowest, over one pool. Safe from any thread."""

    tiers: Sequence[Tier]
    pool: BlockPool
    codec: FrameCodec
    clock: Clock
    telemetry: Telemetry
    events: Sequence[EventSink] = field(default=())

    def rebuild(self, deadline: Deadline) -> None:
        """Learn what the tiers hold from an earlier life."""
        for tier in self.tiers:
            tier.rebuild(deadline)

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[int]:
        """For each chunk before the first that no tier holds: the first tier that does."""
        found = self.where(keys, deadline)
        return found[: found.index(-1)] if -1 in found else found

    def where(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[int]:
        """For each chunk, the first tier that holds it, or -1."""
        found = [-1] * len(keys)
        unknown: Sequence[int] = range(len(keys))
        for ordinal, tier in enumerate(self.tiers):
            have = tier.contains([keys[i] for i in unknown], deadline)
            for i, here in zip(unknown, have, strict=True):
                if here:
                    found[i] = ordinal
            unknown = [i for i in unknown if found[i] < 0]
            if not unknown:
                break
        return found

    def pin(self, owner: str, keys: Sequence[ChunkKey]) -> None:
        """Keep chunks from eviction on every tier that holds them."""
        for tier in self.tiers:
            if tier.index is not None:
                tier.index.pin(owner, keys)

    def unpin(self, owner: str) -> int:
        """Let go of all that *owner* pinned. How many pins there were, over all tiers."""
        return sum(tier.index.unpin(owner) for tier in self.tiers if tier.index is not None)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """One request met these chunks: every tier that holds some learns of it.

        Also the tiers that will not serve it: else a chunk that memory always serves would
        grow old on disk, and be lost with the memory.
        """
        for tier in self.tiers:
            if tier.index is not None:
                tier.index.touch(keys)

    def load(self, prompt: Prompt, found: Sequence[int], owner: str, deadline: Deadline) -> Loaded:
        """Bring chunks into leased blocks, each from the first tier that really has it.

        Args:
            prompt: the chunks; all of them are tried.
            found: where :meth:`locate` saw each.
            owner: in whose name the blocks are leased.
            deadline: after which what has not arrived is not waited for.
        """
        count = len(prompt)
        loaded = Loaded.nothing(count)
        for ordinal, tier in enumerate(self.tiers):
            ask = [i for i in range(count) if loaded.leases[i] is None and found[i] == ordinal]
            again = [i for i in range(count) if loaded.leases[i] is None and found[i] < ordinal]
            if again:
                have = tier.contains([prompt.keys[i] for i in again], deadline)
                ask = sorted([*ask, *(i for i, here in zip(again, have, strict=True) if here)])
            if ask:
                self._load_from(tier, ask, prompt, loaded, owner, deadline)
        return loaded

    def promote(self, prompt: Prompt, loaded: Loaded, count: int, deadline: Deadline) -> None:
        """Copy the first *count* chunks to the faster tiers that lack them."""
        slowest = max((self._ordinal(name) for name in loaded.tiers[:count]), default=0)
        for ordinal in range(slowest):
            tier = self.tiers[ordinal]
            if not tier.promotes:
                continue
            below = [i for i in range(count) if self._ordinal(loaded.tiers[i]) > ordinal]
            for run in _runs(below):
                part = prompt.part(run[0], run[-1] + 1)
                leases = [lease for i in run if (lease := loaded.leases[i]) is not None]
                self._put_on(tier, part, leases, deadline)

    def put(
        self, prompt: Prompt, leases: Sequence[BlockLease], deadline: Deadline
    ) -> Mapping[str, Sequence[bool]]:
        """Write chunks to every tier that takes new ones.

        Returns:
            for each of those tiers, which of the chunks are on it now.
        """
        tiers = [tier for tier in self.tiers if tier.writes]
        if any(tier.sharing is None for tier in tiers):
            # Before anybody else can see the blocks.
            self._seal(prompt, leases)
        return {tier.name: self._put_on(tier, prompt, leases, deadline) for tier in tiers}

    def forget(self, keys: Sequence[ChunkKey], tiers: Iterable[Tier], deadline: Deadline) -> int:
        """Delete chunks from *tiers*. How many distinct ones were there, where that is known."""
        gone: set[ChunkKey] = set()
        for tier in tiers:
            here = tier.forget(keys, deadline)
            gone.update(here)
            self._emit(Change.REMOVED, tier, here)
        return len(gone)

    def make_room(self, size: int) -> bool:
        """Let tiers that keep leases evict *size* bytes; whether any did. The pool's reclaim."""
        for tier in self.tiers:
            if tier.sharing is not None and tier.index is not None:
                victims = tier.index.evict(size)
                if victims:
                    self._evict(tier, victims, Deadline(self.clock, self.clock.now() + 1.0))
                    return True
        return False

    def _ordinal(self, name: str) -> int:
        return next(i for i, tier in enumerate(self.tiers) if tier.name == name)

    def _load_from(
        self,
        tier: Tier,
        ask: Sequence[int],
        prompt: Prompt,
        loaded: Loaded,
        owner: str,
        deadline: Deadline,
    ) -> None:
        keys = [prompt.keys[i] for i in ask]
        if tier.sharing is not None:
            for i, lease in zip(ask, tier.lend(keys, owner), strict=True):
                if isinstance(lease, BlockLease):
                    loaded.leases[i], loaded.tiers[i] = lease, tier.name
            return
        sink = PoolSink(self.pool, [prompt.raw_bytes(i) for i in ask], owner, deadline)
        start = self.clock.now()
        try:
            outcomes = tier.read(keys, sink, deadline)
            damaged, stale, size = [], [], 0
            for n, (i, outcome) in enumerate(zip(ask, outcomes, strict=True)):
                why = self._judge(outcome, sink, n, prompt, i)
                if why is None:
                    loaded.leases[i], loaded.tiers[i] = sink.keep(n), tier.name
                    size += outcome.size if isinstance(outcome, Hit) else 0
                    continue
                loaded.why[i] = why
                if why == "corrupt":
                    damaged.append(keys[n])
                elif why == MissReason.ABSENT:
                    stale.append(keys[n])
        finally:
            sink.release()
        self.telemetry.observe(Histogram.READ, self.clock.now() - start, tier=tier.name)
        self.telemetry.count(Counter.READ_BYTES, size, tier=tier.name)
        if damaged:
            self.telemetry.count(Counter.CORRUPT, len(damaged), tier=tier.name)
            tier.quarantine(damaged, deadline)
            self._emit(Change.REMOVED, tier, damaged)
        if stale and tier.index is not None:
            self._emit(Change.REMOVED, tier, tier.forget(stale, deadline))

    def _judge(
        self, outcome: ReadOutcome, sink: PoolSink, n: int, prompt: Prompt, i: int
    ) -> str | None:
        """Why the chunk is not to be used; ``None`` if it is whole and the one prompt."""
        match outcome:
            case Hit(size):
                lease = sink.leases[n]
                if lease is None or size != len(lease.frame):
                    return "failed"
                try:
                    header = self.codec.open(lease.frame, prompt.keys[i])
                except CorruptFrame:
                    return "corrupt"
                if header.tokens != prompt.tokens(i) or header.raw_bytes != prompt.raw_bytes(i):
                    return "corrupt"
                if header.serde != RAW:
                    return "unknown serde"
                lease.shrink(header.payload_bytes)
                return None
            case Miss(reason):
                if reason is MissReason.REFUSED and n in sink.wrong:
                    return "corrupt"
                return reason.value
            case Corrupt():
                return "corrupt"
            case TimedOut():
                return "timed out"
            case Failed():
                return "failed"

    def _put_on(
        self, tier: Tier, prompt: Prompt, leases: Sequence[BlockLease], deadline: Deadline
    ) -> list[bool]:
        start = self.clock.now()
        here, todo = self._reserve(tier, prompt, leases, deadline)
        if not todo:
            return here
        done: list[int]
        if tier.sharing is not None:
            done = [i for i in todo if tier.keep(prompt.keys[i], leases[i])]
        else:
            self._seal(prompt, leases)
            items = [Item(prompt.keys[i], leases[i].frame) for i in todo]
            outcomes = tier.write(items, deadline)
            done = [i for i, outcome in zip(todo, outcomes, strict=True) if _is_stored(outcome)]
        for i in done:
            here[i] = True
        if tier.index is not None:
            tier.index.commit([prompt.keys[i] for i in done])
            failed = set(todo).difference(done)
            if failed:
                tier.index.abort([prompt.keys[i] for i in sorted(failed)])
        size = sum(len(leases[i].frame) for i in done)
        self.telemetry.count(Counter.WRITTEN_BYTES, size, tier=tier.name)
        self.telemetry.count(Counter.STORED, len(done), tier=tier.name)
        self.telemetry.observe(Histogram.WRITE, self.clock.now() - start, tier=tier.name)
        self._emit(Change.STORED, tier, [prompt.keys[i] for i in done])
        return here

    def _reserve(
        self, tier: Tier, prompt: Prompt, leases: Sequence[BlockLease], deadline: Deadline
    ) -> tuple[list[bool], list[int]]:
        """Which chunks are there already, and which to write now that there is room."""
        keys = prompt.keys
        here = list(tier.contains(keys, deadline))
        if tier.index is None:
            return here, [i for i, there in enumerate(here) if not there]
        sizes = [len(lease.frame) for lease in leases]
        reservation = tier.index.reserve(keys, sizes, prompt.after)
        self._evict(tier, reservation.victims, deadline)
        reserved = set(reservation.keys)
        todo = [i for i, key in enumerate(keys) if key in reserved]
        if reservation.refused:
            refused = len(reservation.refused)
            self.telemetry.count(Counter.DROPPED, refused, tier=tier.name, reason="no room")
        return here, todo

    def _evict(self, tier: Tier, victims: Sequence[ChunkKey], deadline: Deadline) -> None:
        if victims:
            tier.delete(victims, deadline)
            self.telemetry.count(Counter.EVICTED, len(victims), tier=tier.name)
            self._emit(Change.REMOVED, tier, victims)

    def _seal(self, prompt: Prompt, leases: Sequence[BlockLease]) -> None:
        now = self.clock.wall()
        for i, lease in enumerate(leases):
            if not self.codec.is_sealed(lease.frame):
                payload = len(lease.payload)
                header = FrameHeader(
                    key=prompt.keys[i],
                    identity=prompt.identity,
                    tokens=prompt.tokens(i),
                    serde=RAW,
                    raw_bytes=prompt.raw_bytes(i),
                    payload_bytes=payload,
                    created=now,
                )
                self.codec.seal(lease.frame, header)

    def _emit(self, change: Change, tier: Tier, keys: Sequence[ChunkKey]) -> None:
        if keys:
            event = CacheEvent(change, tier.name, tuple(keys))
            for sink in self.events:
                sink.emit(event)


def _is_stored(outcome: WriteOutcome) -> bool:
    return isinstance(outcome, Stored)


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split ascending numbers where they jump."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
