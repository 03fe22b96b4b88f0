"""The tier stack: all tiers are written, the first that answers is read, faster ones get copies.

Writing to all tiers keeps eviction simple: the slower tiers still hold a chunk that one tier drops,
so eviction copies nothing (a tier may be configured to take only evicted chunks). A read tries the
tiers in order, chunk by chunk; a chunk counts as a hit only when its frame has arrived and was
verified.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from threading import Lock

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.tiers.batches import Batch, Pending
from hexkv.core.tiers.evicting import background_deadline
from hexkv.core.tiers.matching import (
    Found,
    find_tiers,
    run_of,
    runs,
    serving,
)
from hexkv.core.tiers.pins import Pins
from hexkv.core.tiers.read.reading import Fetcher
from hexkv.core.tiers.rules import TierRules, Writes
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier, TierPlan
from hexkv.core.tiers.write.clearing import Gone, clear, forget, part_with
from hexkv.core.tiers.write.queues import share_out
from hexkv.core.tiers.write.writing import OnStored, Writer
from hexkv.ports import (
    ChunkKey,
    ChunkSpec,
    Cleared,
    ConfigError,
    Deadline,
    InvalidRequest,
    Reason,
)


class TierStack:
    """Tiers from fastest to slowest, over one pool. Safe from any thread."""

    def __init__(self, plans: Iterable[TierPlan], runtime: TierRuntime) -> None:
        """Make the tiers' lanes, and start to fill each index from its store.

        Raises:
            ConfigError: two tiers have the same name.
        """
        self.runtime = runtime
        self.pool = runtime.pool
        """The pool of blocks."""

        self.tiers: tuple[Tier, ...] = ()
        self._names: Sequence[str] = ()
        self.lending: set[str] = set()
        """The names of the tiers in memory."""

        self.step = self._run = Pipelining.of(self.pool).run
        """The number of chunks to write together, so that writing begins soon."""

        self.fetcher = Fetcher(runtime)
        self.writer = Writer(runtime)
        self.patience = 1.0
        """Seconds that a store may take to answer a lookup."""

        self.moves = 0
        """How often chunks were deleted from a tier because another tier holds them now."""

        self.pins = Pins(runtime.clock)
        self._tenants: dict[bytes, str] = {}
        self._arranging = Lock()
        for plan in plans:
            self.attach(plan)

    def attach(self, plan: TierPlan, position: int | None = None) -> Tier:
        """Add a tier, at the end or at *position*; its index is filled in the background.

        Raises:
            ConfigError: a tier of that name exists.
        """
        with self._arranging:
            if any(other.name == plan.name for other in self.tiers):
                raise ConfigError(f"there is a tier {plan.name!r} already")
            tier = plan.make(self.runtime)
            tiers = list(self.tiers)
            tiers.insert(len(tiers) if position is None else position, tier)
            for prefix, tenant in self._tenants.items():
                tier.index.assign(prefix, tenant)
            # All of this before the tier is visible: every write to it is counted.
            tier.indexing = tier.index.decides and tier.calls.scanning is not None
            if tier.indexing:
                for lane in tier.lanes:
                    lane.hold()
            self._arrange(tiers)
        if tier.indexing:
            self._learn(tier)
        return tier

    def detach(self, name: str, deadline: Deadline) -> bool:
        """Remove a tier: start no new calls, wait for running ones, close the store.

        Return True if every running call ended before *deadline*; the tier is removed in any case.

        Raises:
            InvalidRequest: there is no such tier.
        """
        with self._arranging:
            (tier,) = self.named([name])
            self._arrange([other for other in self.tiers if other is not tier])
        drained = tier.drain(deadline)
        closed = tier.close_soon().wait(deadline)
        return drained and closed

    def assign(self, prefix: bytes, tenant: str) -> None:
        """Assign chunks whose keys begin with *prefix* to *tenant* from now on, on every tier."""
        with self._arranging:
            self._tenants[prefix] = tenant
            tiers = self.tiers
        for tier in tiers:
            self.writer.evict_soon(tier, tier.index.assign(prefix, tenant))

    def change_rules(self, tier: Tier, rules: TierRules) -> None:
        """Apply *rules* to *tier* from now on."""
        with self._arranging:
            tier.rules = rules
            self._arrange(self.tiers)

    def named(self, names: Sequence[str] | None) -> list[Tier]:
        """Return the tiers of these names, or all for ``None``.

        Raises:
            InvalidRequest: there is no such tier.
        """
        if names is None:
            return list(self.tiers)
        known = {tier.name: tier for tier in self.tiers}
        if unknown := [name for name in names if name not in known]:
            raise InvalidRequest(f"no tier {unknown[0]!r}; there are {', '.join(known)}")
        return [known[name] for name in names]

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[Tier]:
        """Return the first tier of each chunk, up to the first chunk that no tier holds."""
        return run_of(self.find_tiers(keys, deadline))

    @property
    def serving(self) -> Sequence[Tier]:
        """The tiers that bring KV sooner than it is computed; one request is served from them."""
        rate = self.runtime.computing.rate
        return self.tiers if rate is None else serving(self.tiers, rate)

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Found:
        """Return, for each chunk, the first tier that holds it and is faster than computing it."""
        return self.find_tiers(keys, deadline, self.serving)

    def find_tiers(
        self,
        keys: Sequence[ChunkKey],
        deadline: Deadline,
        tiers: Sequence[Tier] | None = None,
        *,
        asks: bool = True,
    ) -> Found:
        """Return, for each chunk, the first of *tiers* (default: all) that holds it, or ``None``.

        Without *asks*, use the indexes only; do not query a store.
        """
        asked = self.tiers if tiers is None else tiers
        while True:
            moves = self.moves
            # A tier that answers after its lookup budget counts as a miss.
            soon = self.runtime.clock.now() + self.patience
            until = Deadline(self.runtime.clock, soon) if soon < deadline.at else deadline
            found = find_tiers(asked, keys, until, asks=asks)
            # A chunk moved to a faster tier during the lookup was found on neither.
            if moves == self.moves or None not in found or deadline.expired:
                return found

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Note on every tier that one request used these chunks.

        This includes tiers that will not serve the request: else a chunk that memory always serves
        would grow old on disk, and be lost with the memory.
        """
        if keys:
            if self.writer.admissions.by_tier:
                self.writer.admissions.met(keys)
            for tier in self.tiers:
                tier.index.touch(keys)
            self.runtime.ages.used(self._names, keys)

    def promote(self, batch: Batch, origin: Sequence[str], deadline: Deadline) -> None:
        """Copy chunks to the tiers that are faster than the one each came from (*origin*).

        Tiers in memory take the blocks at once; those with lanes write them in the background.
        """
        if origin.count(self.tiers[0].name) == len(origin):
            return
        order = {tier.name: ordinal for ordinal, tier in enumerate(self.tiers)}
        places = [order.get(name, 0) for name in origin]
        for ordinal, tier in enumerate(self.tiers[: max(places, default=0)]):
            if tier.rules.promotes:
                until = deadline if tier.lends else background_deadline(self.runtime)
                if min(places) > ordinal:  # usually all are from one tier
                    self.writer.put(tier, batch, until)
                    continue
                for run in runs([i for i, place in enumerate(places) if place > ordinal]):
                    self.writer.put(tier, batch.part(run[0], run[-1] + 1), until)

    def put(
        self, batch: Batch, deadline: Deadline, on_stored: OnStored | None = None
    ) -> Mapping[str, Pending]:
        """Write chunks to all tiers that take new ones. Return the pending writes, by tier.

        *on_stored* is called with the chunks that each tier holds, as soon as it holds them. The
        last tier is given the leases, if the batch is to be given away.
        """
        if self.pins.until:  # peers also store chunks, without a call of the engine
            self.pins.expire()
        if self.writer.admissions.by_tier:
            self.writer.admissions.added(batch.keys, batch.after)
        tiers = [tier for tier in self.tiers if tier.rules.writes is Writes.ALL]
        written: dict[str, Pending] = {}
        for tier in tiers:
            part = batch if tier is tiers[-1] else Batch(batch.keys, batch.leases, batch.after)
            written[tier.name] = self.writer.put(tier, part, deadline, on_stored)
        return written

    def forget(
        self,
        keys: Sequence[ChunkKey],
        tiers: Sequence[Tier],
        deadline: Deadline,
        why: tuple[Reason, str] = (Reason.CLEARED, ""),
        tails: Sequence[tuple[ChunkKey, int]] = (),
    ) -> Cleared:
        """Delete chunks from *tiers*, and *tails* (key, tokens) where so few tokens are kept."""

        def gone(tier: Tier) -> Gone:
            kept = [key for key, tokens in tails if tokens >= tier.rules.shortest]
            return forget(tier, [*keys, *kept] if kept else keys, deadline)

        return part_with(self.runtime, tiers, gone, deadline, why)

    def clear(
        self, prefixes: Collection[bytes] | None, tiers: Sequence[Tier], deadline: Deadline
    ) -> Cleared:
        """Delete every chunk whose key begins with one of *prefixes*, or every one for ``None``."""
        work = partial(clear, prefixes=prefixes, deadline=deadline)
        return part_with(self.runtime, tiers, work, deadline)

    @property
    def tenants(self) -> Mapping[bytes, str]:
        """The tenant of each namespace seen so far, by its key prefix; empty for none."""
        with self._arranging:
            return dict(self._tenants)

    def drop(self, specs: Sequence[ChunkSpec], reason: Reason) -> None:
        """Count chunks that were written to none of the tiers that take new ones."""
        for tier in self.tiers:
            if tier.rules.writes is Writes.ALL:
                keys = [spec.key for spec in specs if spec.tokens >= tier.rules.shortest]
                self.writer.dropped(tier, keys, reason)

    def make_room(self, size: int) -> bool:
        """Evict *size* bytes from tiers in blocks of the pool (its reclaim). True if any did."""
        for tier in self.tiers:
            if tier.in_pool:
                below = self.writer.below.get(tier.name)
                if below is not None and below.unwritten >= size > 0:
                    return False  # blocks of earlier victims come free when they are written
                victims = tier.index.evict(size)
                if victims:
                    return self.writer.evict(tier, victims, background_deadline(self.runtime))
        return False

    def flush(self, deadline: Deadline) -> bool:
        """Wait until no tier has pending writes. Return True if this ends before *deadline*."""
        return all(tier.flush(deadline) for tier in self.tiers)

    def close(self, deadline: Deadline) -> None:
        """Close every tier; a store that does not close before *deadline* is left behind."""
        closing = [tier.close_soon() for tier in self.tiers]
        for ticket in closing:
            ticket.wait(deadline)
        self.runtime.closing()

    def _arrange(self, tiers: Sequence[Tier]) -> None:
        self.tiers = self.pins.tiers = tuple(tiers)
        self._names = [tier.name for tier in tiers]
        self.step = min([self._run, *[tier.step for tier in tiers if tier.step]])
        lending = {tier.name for tier in tiers if tier.lends}
        self.lending &= lending
        self.lending |= lending
        # In a pool of one slot, a slot for each queue would be all of it.
        least = self.pool.slot_bytes if self.pool.slots > 1 else 0
        share_out(self.tiers, self.pool.capacity, least)
        self.writer.below = {
            tier.name: below
            for tier, below in pairwise(self.tiers)
            if below.rules.writes is Writes.EVICTED
        }

    def _learn(self, tier: Tier) -> None:
        """Fill a tier's index from its store, beside the calls that use it."""

        def work(go: bool) -> tuple[None, bool | None]:
            well = self.writer.learn(tier) if go else None
            for lane in tier.lanes:
                lane.unhold()
            return None, well

        with suppress(Refused):  # for example another thread has removed the tier by now
            tier.submit(Priority.DELETE, 0, work)
