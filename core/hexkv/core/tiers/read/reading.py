"""Reading: fetch chunks from a tier into leased blocks, each chunk once.

The requesting thread first takes room in the tier's queue, then blocks, then queues the read. It
waits for either only while it holds no block, so a waiting thread never holds a block that another
one waits for. Each reader of a chunk has a lease of its own on its block, and so has the read: the
last of them to release it frees the block. The worker that read the frames verifies and decodes
them, while the preceding chunks are copied to the device.

All whole frames are read here: chunks of requests by their specs, and frames of any size and form
by their keys, to move, lend or export them. Apart from it stand ``ranges``, for parts of frames in
the order of layers, and ``direct``, for frames that never come into the host's memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Sequence
from functools import partial
from itertools import islice
from threading import RLock

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.io.ticket import Room
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.read.block_sink import BlockSink, label
from hexkv.core.tiers.read.encoding import bring_into, open_into
from hexkv.core.tiers.read.intake import read_frames
from hexkv.core.tiers.read.pending_reads import Fetch, PendingRead
from hexkv.core.tiers.read.pieces import STEP, Obtained, in_pieces
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
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

_FAILED = (
    Reason.FAILED,
    Reason.TIMED_OUT,
    Reason.TIER_OFF,
    Reason.QUEUE_FULL,
    Reason.CLOSED,
)
"""The reasons of chunks that may be on the tier nevertheless."""


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
            lent = tier.calls.get_lease([spec.key for spec in specs], owner)
            why = self.fit(lent, specs, owner, known)
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
                room = tier.reading.admit(priority, sizes, wait or now, final=final)
        except Refused as refusal:
            return self._without(
                refusal.reason, tier, specs, owner, claims, waited=wait is not None
            )
        with room:
            blocks: list[BlockLease] = []
            fresh: list[ChunkKey] = []
            fetch = Fetch(tier, blocks, partial(self._count_wasted, tier.name), self._decode)
            fetch.late = deadline.usual > 0  # others have more time than such a read
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

    def frames(
        self,
        tier: Tier,
        keys: Sequence[ChunkKey],
        owner: str,
        deadline: Deadline,
        step: int = STEP,
        *,
        held: bool = False,
    ) -> Generator[Obtained, None, None]:
        """Yield whole frames of any size and form, up to *step* at a time; see `in_pieces`."""
        obtain = partial(self._obtain, tier, owner, deadline)
        return in_pieces(self._runtime.pool, keys, step, obtain, owner, deadline, held=held)

    def _obtain(
        self, tier: Tier, owner: str, deadline: Deadline, keys: Sequence[ChunkKey]
    ) -> Obtained:
        """Read whole frames, as far as blocks are free."""
        if tier.lends:
            lent = zip(keys, tier.calls.get_lease(keys, owner), strict=True)
            got = Obtained({key: lease for key, lease in lent if lease is not None})
            got.absent = len(keys) - len(got.leases)
            return got
        fetch = Fetch(tier, [], partial(self._count_wasted, tier.name), self._decode)
        self._submit(fetch, keys, [], deadline, Priority.GET, None)
        if fetch.ticket is None or not fetch.ticket.wait(deadline):
            fetch.abandon(len(keys))
            return Obtained(failed=len(keys))
        got = Obtained(again=[keys[i] for i in sorted(fetch.short)])
        got.short = max(fetch.short.values(), default=0)
        for i, key in enumerate(keys):
            block = fetch.take_encoded(i)
            if block is not None:
                got.leases[key] = block
            elif i not in fetch.short:
                got.failed += fetch.why[i] in _FAILED
                got.absent += fetch.why[i] not in _FAILED
        self._runtime.pool.hand_over(list(got.leases.values()), owner)
        return got

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

    def fit(
        self,
        lent: list[Lease | None],
        specs: Sequence[ChunkSpec],
        owner: str,
        encoded: Collection[str] = (),
    ) -> dict[int, Reason]:
        """Make leases of a tier in memory fit *specs*. Return, by index, why chunks are missing."""
        why: dict[int, Reason] = {}
        found = [None if block is None else block.spec for block in lent]
        if found == specs:  # all raw, and with these specs
            return why
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
        return why

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
                for index, key in enumerate(keys) if blocks else ():
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
        now = Deadline(self._runtime.clock, 0.0)
        own = partial(self._runtime.pool.lease, owner=f"read {fetch.tier.name}", deadline=now)
        sink = BlockSink(
            blocks or [None] * len(keys), None if blocks and not fetch.encoded else own
        )
        tokens: list[int] = []

        def judge(i: int, header: FrameHeader) -> Reason | None:
            frame, kept = sink.frames[i], sink.own.get(i)
            if frame is None:
                return Reason.FAILED
            if not blocks:
                why = label(kept, header)
            elif kept is not None and header.serde in fetch.encoded:
                why = _relabel(kept, header, blocks[i].spec)
            else:
                why, kept = bring_into(self._runtime, header, frame, blocks[i]), None
            if why is None:
                tokens.append(header.tokens)
                if kept is not None:
                    fetch.keep_encoded(i, sink.own.pop(i))
            return why

        try:
            read = read_frames(self._runtime, fetch.tier, keys, sink, judge, deadline)
        finally:
            if sink.own:
                sink.release()
        fetch.why, fetch.sizes, fetch.short = read.why, read.sizes, sink.short
        fetch.tier.link.ended(self._runtime.clock.now(), sum(tokens))
        return read.well


def _relabel(kept: BlockLease, header: FrameHeader, spec: ChunkSpec | None) -> Reason | None:
    """Label the block of a frame that stays encoded. Return the reason if it is unusable."""
    if spec is None or header.tokens != spec.tokens or header.raw_bytes != spec.raw_bytes:
        return Reason.CORRUPT
    kept.shrink(header.payload_bytes)
    kept.spec = spec._replace(serde=header.serde)
    return None
