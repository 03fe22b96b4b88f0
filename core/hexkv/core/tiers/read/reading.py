"""Reading: fetch chunks from a tier into leased blocks, each chunk once.

The requesting thread first takes room in the tier's queue, then blocks, then queues the read. It
waits for either only while it holds no block, so a waiting thread never holds a block that another
one waits for. Each reader of a chunk has a lease of its own on its block, and so has the read: the
last of them to release it frees the block. The worker that read the frames verifies and decodes
them, while the preceding chunks are copied to the device.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from threading import RLock

from hexkv.core.io.room import Room
from hexkv.core.io.rules import Priority, Refused
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.read.encoding import bring_into, open_into, scratch
from hexkv.core.tiers.read.intake import read_frames
from hexkv.core.tiers.read.pending_reads import Fetch, PendingRead
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkSpec,
    CounterName,
    Deadline,
    FrameHeader,
    Lease,
    PoolExhausted,
    Reason,
    frame_bytes,
    raw_sizes,
    release_all,
    share_all,
)

log = logging.getLogger("hexkv")


class BlockSink:
    """Gives a store the blocks that were leased for it.

    A frame as long as the chunk goes straight into the block. A shorter one is encoded: it goes
    into scratch memory, and the block is for the output of the serde; or, where frames may stay
    encoded, into a block of its own, if there is one.
    """

    def __init__(
        self,
        blocks: Sequence[BlockLease],
        scratch: Callable[[int], memoryview],
        lease: Callable[[int], BlockLease | None] | None = None,
    ) -> None:
        self.own: dict[int, BlockLease] = {}
        """Blocks of frames that may stay encoded."""

        self._lease = lease
        self.wrong: set[int] = set()
        self.frames: list[memoryview | None] = [None] * len(blocks)
        self._blocks = blocks
        self._scratch = scratch

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`. Sizes that no valid frame has are refused."""
        whole = self._blocks[index].frame
        self.wrong.discard(index)
        if size == len(whole):
            self.frames[index] = whole
        elif PAGE <= size < len(whole) and size % PAGE == 0:
            self.frames[index] = self._short(index, size)
        else:
            self.wrong.add(index)
            return None
        return self.frames[index]

    def _short(self, index: int, size: int) -> memoryview:
        if self._lease is not None and size > PAGE:
            self.give_back(index)
            block = self._lease(size - PAGE)
            if block is not None:
                self.own[index] = block
                return block.frame
        return self._scratch(size)

    def give_back(self, index: int | None = None) -> None:
        """Release the block of one frame, or of all that are left."""
        for at in [index] if index is not None else list(self.own):
            block = self.own.pop(at, None)
            if block is not None:
                block.release()


class Fetcher:
    """Starts fetches, and lets requests for the same chunk share one."""

    def __init__(self, runtime: TierRuntime) -> None:
        self._runtime = runtime
        self._under_way: dict[tuple[str, ChunkKey], tuple[Fetch, int]] = {}
        self._lock = RLock()

    def begin(
        self,
        tier: Tier,
        specs: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        priority: Priority = Priority.GET,
        *,
        wait: Deadline | None = None,
        keeps: bool = False,
        encoded: Collection[str] = (),
    ) -> list[PendingRead]:
        """Begin reads of the first of *specs*, as many as there is room for.

        As many together as one worker of the tier reads at a time.

        Args:
            tier: the tier where they were found.
            specs: the chunks.
            owner: the owner of the blocks' leases.
            deadline: for the read; that of the caller may differ.
            priority: among the reads of the tier.
            wait: how long to wait for room in the queue and for the first block; only for callers
                that hold no block. By default only reads that have room now are begun.
            keeps: True if the caller keeps the blocks long after the read. Then the queue does not
                hold them, and they take no room there.
            encoded: serdes, as frames name them, whose frames may stay encoded. Such a read is not
                joined.
        """
        step = tier.step or max(1, len(specs))
        if not 0 < len(specs) <= step:
            begun: list[PendingRead] = []
            for at in range(0, len(specs), step):
                part, some = specs[at : at + step], None if begun else wait
                begun += self.begin(
                    tier, part, owner, deadline, priority, wait=some, keeps=keeps, encoded=encoded
                )
                if len(begun) < at + len(part):
                    break
            return begun
        if tier.lends:
            # The caller that will use a prefetched chunk, and if it decodes, is not known yet.
            known = () if priority is Priority.PREFETCH else encoded
            lent, why = self.lend(tier, specs, owner, known)
            return [
                PendingRead(spec, tier.name, block, why=why.get(i))
                for i, (spec, block) in enumerate(zip(specs, lent, strict=True))
            ]
        now = Deadline(self._runtime.clock, 0.0)
        claims: list[PendingRead] = []
        if self._under_way and (joined := self._join(tier, specs[0], owner)) is not None:
            claims.append(joined)
            wait = None
        raw = raw_sizes(specs)
        wanted = raw[len(claims) :]
        if self._under_way:
            wanted = [
                size
                for i, (spec, size) in enumerate(zip(specs, raw, strict=True))
                if i >= len(claims) and (i == 0 or not self._joinable(tier, spec.key))
            ]
        sizes = list(map(frame_bytes, wanted))
        final = wait is not None and wait.at >= deadline.at
        try:
            if keeps or not sizes:
                room = Room(None, sizes)
            else:
                room = tier.admit(priority, sizes, wait or now, final=final)
        except Refused as refusal:
            return self._without(
                refusal.reason, tier, specs, owner, claims, waited=wait is not None
            )
        with room:
            blocks: list[BlockLease] = []
            fresh: list[ChunkKey] = []
            fetch = Fetch(tier, blocks, partial(self._count_wasted, tier.name), self._decode)
            until = now if claims or wait is None else wait
            free = self._blocks(wanted[: room.count], owner, until)
            # In one step: of two calls that want a chunk at the same moment, one joins the other's
            # read.
            with self._lock:
                for spec, size in islice(zip(specs, raw, strict=True), len(claims), None):
                    if self._under_way and (joined := self._join(tier, spec, owner)) is not None:
                        claims.append(joined)
                        continue
                    # The block was leased for another chunk, if another read has ended since.
                    if not free or len(free[0].payload) != size:
                        break
                    block = free.popleft()
                    block.spec = spec
                    claims.append(PendingRead(spec, tier.name, block, fetch, len(blocks)))
                    blocks.append(block)
                    fresh.append(spec.key)
                if blocks:
                    blocks[:] = share_all(blocks, f"read {tier.name}")  # type: ignore[assignment] # of its class
                    fetch.encoded = frozenset(encoded)
                    self._submit(fetch, fresh, blocks, deadline, priority, None if keeps else room)
            if free:
                release_all(free)
        return claims

    def _blocks(self, payloads: Sequence[int], owner: str, wait: Deadline) -> deque[BlockLease]:
        try:
            return deque(self._runtime.pool.lease_run(payloads, owner, wait))
        except PoolExhausted:
            return deque()

    def _without(
        self,
        why: Reason,
        tier: Tier,
        specs: Sequence[ChunkSpec],
        owner: str,
        claims: list[PendingRead],
        *,
        waited: bool,
    ) -> list[PendingRead]:
        """Return the reads that can be joined, when the lane takes no new read.

        The other chunks get pending reads without a block, with the reason *why*; but after a queue
        was found full without waiting they are left out, and the caller may come again.
        """
        full = why is Reason.QUEUE_FULL
        for spec in specs[len(claims) :]:
            joined = self._join(tier, spec, owner)
            if joined is None:
                if full and not waited:
                    break
                joined = PendingRead(spec, tier.name, None, why=why)
            claims.append(joined)
            if full and joined.why is why:
                break
        return claims

    def lend(
        self, tier: Tier, specs: Sequence[ChunkSpec], owner: str, encoded: Collection[str] = ()
    ) -> tuple[list[Lease | None], dict[int, Reason]]:
        """Lease *specs* from a tier in memory. Return also, by index, why others are missing."""
        lent = tier.calls.get_lease([spec.key for spec in specs], owner)
        why: dict[int, Reason] = {}
        found = [None if block is None else block.spec for block in lent]
        if found == specs:  # all raw, and with these specs
            return lent, why
        for i, (spec, block, kept) in enumerate(zip(specs, lent, found, strict=True)):
            if kept == spec:
                continue
            if block is None or kept is None:
                why[i] = Reason.ABSENT
                continue
            same = kept.layout is spec.layout and kept.tokens == spec.tokens
            if not same and kept.raw_bytes != spec.raw_bytes:  # another shape under the key
                block.release()
                lent[i], why[i] = None, Reason.CORRUPT
            elif kept.serde != RAW and kept.serde not in encoded:
                lent[i] = self._decoded(spec.key, block, kept, owner)
                if lent[i] is None:
                    why[i] = Reason.ABSENT
        return lent, why

    def _decoded(self, key: ChunkKey, encoded: Lease, spec: ChunkSpec, owner: str) -> Lease | None:
        """Decode the chunk of an encoded block into a block of its own."""
        now = Deadline(self._runtime.clock, 0.0)
        with encoded:
            try:
                block = self._runtime.pool.lease(spec.raw_bytes, owner, now)
            except PoolExhausted:
                return None
            block.spec = spec._replace(serde=RAW)
            self._runtime.occupied()
            if open_into(self._runtime, encoded.frame, key, block) is None:
                return block
            block.release()
            return None

    def _decode(self, kept: BlockLease, block: Lease) -> Reason | None:
        """Decode the chunk in *kept* into *block*. Return the reason if this fails."""
        spec = block.spec
        if spec is None:
            return Reason.FAILED
        return open_into(self._runtime, kept.frame, spec.key, block)

    def _count_wasted(self, tier: str, size: int) -> None:
        self._runtime.telemetry.count(CounterName.WASTED_BYTES, size, tier=tier)

    def _joinable(self, tier: Tier, key: ChunkKey) -> bool:
        """True if a chunk is being read now, and the read can be joined."""
        found = self._under_way.get((tier.name, key))
        return found is not None and not found[0].late and not found[0].encoded

    def _join(self, tier: Tier, spec: ChunkSpec, owner: str) -> PendingRead | None:
        with self._lock:
            found = self._under_way.get((tier.name, spec.key))
            # To wait for a hanging read would cost each caller a deadline, past the breaker.
            if (
                found is None
                or found[0].encoded
                or (lease := found[0].join(found[1], owner)) is None
            ):
                return None
            return PendingRead(spec, tier.name, lease, *found)

    def _submit(
        self,
        fetch: Fetch,
        keys: Sequence[ChunkKey],
        blocks: Sequence[BlockLease],
        deadline: Deadline,
        priority: Priority,
        room: Room | None,
    ) -> None:
        tier = fetch.tier
        fetch.why = [Reason.TIER_OFF] * len(keys)

        def work(go: bool) -> tuple[None, bool | None]:
            well: bool | None = None
            try:
                if go:
                    well = self._read(fetch, keys, blocks, deadline)
                else:
                    fetch.why = [Reason.TIMED_OUT] * len(keys)
            finally:
                self._over(fetch, keys)
            return None, well

        size = 0 if room is None else sum(len(block.frame) for block in blocks)
        try:
            # Under the lock: a joining call finds the ticket, and the end of the worker the entry.
            with self._lock:
                fetch.ticket = tier.submit(priority, size, work, deadline, room)
                for index, key in enumerate(keys):
                    self._under_way[tier.name, key] = fetch, index
        except Refused as refusal:
            fetch.why = [refusal.reason] * len(keys)
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
    ) -> bool | None:
        """Read, verify and decode. Return True if the store works; ``None`` if not known."""
        sink = BlockSink(blocks, scratch, self._free_block(fetch) if fetch.encoded else None)

        def judge(i: int, header: FrameHeader) -> Reason | None:
            frame = sink.frames[i]
            if frame is None:
                return Reason.FAILED
            if header.serde in fetch.encoded and i in sink.own:
                return _stays(fetch, i, header, blocks[i], sink.own)
            return bring_into(self._runtime, header, frame, blocks[i])

        try:
            read = read_frames(self._runtime, fetch.tier, keys, sink, judge, deadline)
        finally:
            sink.give_back()
        fetch.why, fetch.sizes = read.why, read.sizes
        tokens = [b.spec.tokens for b, w in zip(blocks, read.why, strict=True) if b.spec and not w]
        fetch.tier.link.ended(self._runtime.clock.now(), sum(tokens))
        return read.well

    def _free_block(self, fetch: Fetch) -> Callable[[int], BlockLease | None]:
        """Return a function that leases a block if one is free, without waiting."""

        def lease(payload_bytes: int) -> BlockLease | None:
            now = Deadline(self._runtime.clock, 0.0)
            try:
                return self._runtime.pool.lease(payload_bytes, f"read {fetch.tier.name}", now)
            except PoolExhausted:
                return None

        return lease


def _stays(
    fetch: Fetch, index: int, header: FrameHeader, block: BlockLease, own: dict[int, BlockLease]
) -> Reason | None:
    """Leave the chunk of *header* encoded in its own block. Return the reason if it is unusable."""
    spec = block.spec
    if spec is None or header.tokens != spec.tokens or header.raw_bytes != spec.raw_bytes:
        return Reason.CORRUPT
    kept = own.pop(index)
    kept.spec = spec._replace(serde=header.serde)
    fetch.keep_encoded(index, kept)
    return None
