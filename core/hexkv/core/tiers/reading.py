"""Fetching: chunks on their way from a tier into leased blocks, each read once.

Blocks are leased before the read is queued, by the thread that asks: so blocks are held in
the order in which they are needed, and nobody holds some while waiting for others that
somebody holds likewise. Frames are verified, and decoded, by the worker that read them,
beside the copy of the chunks before to the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock

from hexkv.core.io.scheduler import Priority, Refused, Ticket
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.pool import BlockLease, Label
from hexkv.core.tiers.encoding import open_into, scratch
from hexkv.core.tiers.evicting import delete_soon, evict_soon
from hexkv.core.tiers.remembering import GONE, remember_reads, set_aside
from hexkv.core.tiers.runtime import RAW, Runtime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    PAGE,
    Change,
    ChunkKey,
    Corrupt,
    Counter,
    Deadline,
    Failed,
    Histogram,
    Hit,
    Miss,
    MissReason,
    PoolExhausted,
    ReadOutcome,
    StoreUnreachable,
    TimedOut,
)

log = logging.getLogger("hexkv")


class BlockSink:
    """Gives a store the blocks that were leased for it.

    A frame as long as the chunk goes straight into the block. A shorter one was encoded:
    it goes into scratch memory, and the block is for what comes out of the serde.
    """

    def __init__(self, blocks: Sequence[BlockLease], scratch: Callable[[int], memoryview]) -> None:
        self.wrong: set[int] = set()
        self.frames: list[memoryview | None] = [None] * len(blocks)
        self._blocks = blocks
        self._scratch = scratch

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`. Sizes that no frame of ours has are refused."""
        whole = self._blocks[index].frame
        if size == len(whole):
            self.frames[index] = whole
        elif PAGE <= size < len(whole) and size % PAGE == 0:
            self.frames[index] = self._scratch(size)
        else:
            self.wrong.add(index)
            return None
        return self.frames[index]


class Fetch:
    """One read under way, and everybody who wants what it brings."""

    def __init__(self, tier: Tier, blocks: list[BlockLease]) -> None:
        self.tier = tier
        self.late = False
        """Whether somebody waited in vain, or nobody waits: nobody is to join it any more."""

        self.ticket: Ticket[None] | None = None
        self.why: list[str | None] = [MissReason.TIER_OFF.value] * len(blocks)
        """Why each chunk is not to be used; ``None`` once it is whole."""

        self._blocks = blocks
        self._wanted = 0
        self._ended = False
        self._lock = Lock()

    def join(self) -> bool:
        """One more wants a chunk of this. ``False``: too late, it is being given up."""
        with self._lock:
            if self.late:
                return False
            self._wanted += 1
            return True

    def take(self, index: int, owner: str) -> BlockLease | None:
        """A share of a chunk that arrived."""
        return self._blocks[index].share(owner) if self.why[index] is None else None

    def leave(self) -> None:
        """One fewer."""
        with self._lock:
            self._wanted -= 1
            unwanted, ended = not self._wanted, self._ended
            self.late = self.late or unwanted
        if unwanted and ended:
            self._release()
        elif unwanted and self.ticket is not None:
            self.ticket.abandon()

    def end(self) -> None:
        """The worker does not touch the blocks any more."""
        with self._lock:
            self._ended = True
            free = not self._wanted
        if free:
            self._release()

    def _release(self) -> None:
        for block in self._blocks:
            block.release()


class Claim:
    """One chunk that a caller waits for: a block at once, or a place in a fetch."""

    __slots__ = ("_fetch", "_index", "_lease", "key", "tier", "why")

    def __init__(
        self, key: ChunkKey, tier: str, lease: BlockLease | None, fetch: Fetch | None, index: int
    ) -> None:
        self.key = key
        self.tier = tier
        self.why = MissReason.ABSENT.value
        self._lease = lease
        self._fetch = fetch
        self._index = index

    def settle(self, owner: str, deadline: Deadline) -> BlockLease | None:
        """Wait for the chunk; the caller releases the lease. ``None``: see :attr:`why`."""
        lease, self._lease = self._lease, None
        fetch, self._fetch = self._fetch, None
        if fetch is None:
            return lease
        ticket = fetch.ticket
        if ticket is not None and not ticket.wait(deadline):
            self.why = "timed out"
            fetch.late = True
        else:
            lease = fetch.take(self._index, owner)
            self.why = fetch.why[self._index] or ""
        fetch.leave()
        return lease

    def drop(self) -> None:
        """Want it no more."""
        lease, self._lease = self._lease, None
        fetch, self._fetch = self._fetch, None
        if lease is not None:
            lease.release()
        if fetch is not None:
            fetch.leave()


class Fetcher:
    """Starts fetches, and lets those who want the same chunk share one."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._under_way: dict[tuple[str, ChunkKey], tuple[Fetch, int]] = {}
        self._lock = Lock()

    def begin(
        self,
        tier: Tier,
        prompt: Prompt,
        owner: str,
        deadline: Deadline,
        priority: Priority,
        *,
        patient: bool,
    ) -> list[Claim]:
        """Claims on the first chunks of *prompt*, as many as there are blocks for.

        Args:
            tier: where they were seen.
            prompt: the chunks.
            owner: in whose name blocks are leased.
            deadline: of the read; the claim's own may be another.
            priority: among the reads of the tier.
            patient: whether to wait for the first block; only who holds none may.
        """
        if tier.sharing is not None:
            return self._lend(tier, prompt, owner)
        claims: list[Claim] = []
        blocks: list[BlockLease] = []
        fresh: list[int] = []
        fetch = Fetch(tier, blocks)
        for i, key in enumerate(prompt.keys):
            joined = self._join(tier, key)
            if joined is not None:
                claims.append(joined)
                continue
            wait = deadline if patient and not claims else Deadline(self._runtime.clock, 0.0)
            try:
                block = self._runtime.pool.lease(prompt.raw_bytes(i), owner, wait)
            except PoolExhausted:
                break
            block.label = prompt.label(i)
            claims.append(Claim(key, tier.name, None, fetch, len(blocks)))
            fetch.join()
            blocks.append(block)
            fresh.append(i)
        if fresh:
            fetch.why = [MissReason.TIER_OFF.value] * len(blocks)
            self._submit(fetch, [prompt.keys[i] for i in fresh], blocks, deadline, priority)
        return claims

    def _lend(self, tier: Tier, prompt: Prompt, owner: str) -> list[Claim]:
        claims = []
        for key, lease in zip(prompt.keys, tier.lend(prompt.keys, owner), strict=True):
            block = lease if isinstance(lease, BlockLease) else None
            if block is not None and block.label is not None and block.label.serde != RAW:
                block = self._decoded(key, block, block.label, owner)
            claims.append(Claim(key, tier.name, block, None, 0))
        return claims

    def _decoded(
        self, key: ChunkKey, encoded: BlockLease, label: Label, owner: str
    ) -> BlockLease | None:
        """The chunk of a block that is kept encoded, in a block of its own."""
        now = Deadline(self._runtime.clock, 0.0)
        with encoded:
            try:
                block = self._runtime.pool.lease(label.raw_bytes, owner, now)
            except PoolExhausted:
                return None
            block.label = label._replace(serde=RAW)
            if open_into(self._runtime, encoded.frame, key, block) is None:
                return block
            block.release()
            return None

    def _join(self, tier: Tier, key: ChunkKey) -> Claim | None:
        with self._lock:
            found = self._under_way.get((tier.name, key))
            # To wait for one that hangs would cost everybody a deadline, past the breaker.
            if found is None or not found[0].join():
                return None
            return Claim(key, tier.name, None, *found)

    def _submit(
        self,
        fetch: Fetch,
        keys: Sequence[ChunkKey],
        blocks: Sequence[BlockLease],
        deadline: Deadline,
        priority: Priority,
    ) -> None:
        tier = fetch.tier

        def work(go: bool) -> tuple[None, bool | None]:
            well: bool | None = None
            try:
                if go:
                    well = self._read(fetch, keys, blocks, deadline)
                else:
                    fetch.why = ["timed out"] * len(keys)
            finally:
                self._over(fetch, keys)
            return None, well

        size = sum(len(block.frame) for block in blocks)
        try:
            # Under the lock, so that who joins finds the ticket, and the worker's end the entry.
            with self._lock:
                fetch.ticket = tier.lane(Priority.GET).submit(priority, size, work, deadline)
                for index, key in enumerate(keys):
                    self._under_way[tier.name, key] = fetch, index
        except Refused as refusal:
            fetch.why = [str(refusal)] * len(keys)
            self._over(fetch, keys)

    def _over(self, fetch: Fetch, keys: Sequence[ChunkKey]) -> None:
        with self._lock:
            for key in keys:
                found = self._under_way.get((fetch.tier.name, key))
                if found is not None and found[0] is fetch:
                    del self._under_way[fetch.tier.name, key]
        fetch.end()

    def _read(
        self,
        fetch: Fetch,
        keys: Sequence[ChunkKey],
        blocks: Sequence[BlockLease],
        deadline: Deadline,
    ) -> bool:
        """Read, verify and decode; whether the store was well."""
        tier, runtime = fetch.tier, self._runtime
        sink = BlockSink(blocks, scratch)
        start = runtime.clock.now()
        tier.link.began(start)
        outcomes = list(tier.read(keys, sink, deadline))
        for _ in range(tier.rules.retries):
            again = [i for i, outcome in enumerate(outcomes) if may_retry(outcome)]
            if not again or deadline.expired:
                break
            runtime.telemetry.count(Counter.RETRIES, len(again), tier=tier.name)
            part = BlockSink([blocks[i] for i in again], scratch)
            answers = tier.read([keys[i] for i in again], part, deadline)
            for n, (i, outcome) in enumerate(zip(again, answers, strict=True)):
                outcomes[i] = outcome
                sink.frames[i] = part.frames[n]
                sink.wrong.discard(i)
                if n in part.wrong:
                    sink.wrong.add(i)
        read = sum(outcome.size for outcome in outcomes if isinstance(outcome, Hit))
        tier.link.arrived(runtime.clock.now(), read)
        why = [
            self._judge(outcome, sink, i, keys[i], blocks[i]) for i, outcome in enumerate(outcomes)
        ]
        arrived = [
            (key, outcome.size)
            for key, outcome, w in zip(keys, outcomes, why, strict=True)
            if w is None and isinstance(outcome, Hit)
        ]
        size = sum(length for _, length in arrived)
        tokens = [b.label.tokens for b, w in zip(blocks, why, strict=True) if b.label and w is None]
        tier.link.ended(runtime.clock.now(), sum(tokens))
        evict_soon(runtime, tier, tier.met(arrived, runtime.clock.wall()))
        runtime.telemetry.observe(Histogram.READ, runtime.clock.now() - start, tier=tier.name)
        runtime.telemetry.count(Counter.READ_BYTES, size, tier=tier.name)
        damaged = [key for key, w in zip(keys, why, strict=True) if w == "corrupt"]
        set_aside(runtime, tier, damaged, deadline)
        stale = [key for key, w in zip(keys, why, strict=True) if w in GONE]
        gone = tier.let_go(stale)
        delete_soon(runtime, tier, gone)
        runtime.tell(Change.REMOVED, tier.name, gone)
        remember_reads(runtime, tier.name, keys, outcomes, why)
        fetch.why = why
        return not all(isinstance(outcome, Failed | TimedOut) for outcome in outcomes)

    def _judge(
        self, outcome: ReadOutcome, sink: BlockSink, i: int, key: ChunkKey, block: BlockLease
    ) -> str | None:
        """Why the chunk is not to be used; ``None`` if it is whole and the one wanted."""
        match outcome:
            case Hit(size):
                frame = sink.frames[i]
                if frame is None or size != len(frame):
                    return "failed"
                return open_into(self._runtime, frame, key, block)
            case Miss(reason):
                if reason is MissReason.REFUSED and i in sink.wrong:
                    return "corrupt"
                return reason.value
            case Corrupt():
                return "corrupt"
            case TimedOut():
                return "timed out"
            case Failed():
                return "failed"


def may_retry(outcome: object) -> bool:
    """Whether trying once more may help."""
    return isinstance(outcome, Failed) and isinstance(outcome.error, StoreUnreachable)
