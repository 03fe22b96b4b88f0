"""The tiers of a stack, in their order: added, removed and changed while others use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from threading import Lock

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.tiers.pins import Pins
from hexkv.core.tiers.rules import TierRules, Writes
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier, TierPlan
from hexkv.core.tiers.write.filling import fill_index
from hexkv.core.tiers.write.writing import Writer
from hexkv.ports import ConfigError, Deadline, InvalidRequest


class Arrangement:
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
        self.names: Sequence[str] = ()
        self.lending: set[str] = set()
        """The names of the tiers in memory."""

        self.at_once = True
        """True if all tiers are in memory: none takes time to answer."""

        self.own: Sequence[Tier] = ()
        """The tiers whose chunks this cache writes: others fill those that are read-only."""

        self.written: Sequence[Tier] = ()
        """The tiers that take new chunks."""

        self.step = self._run = Pipelining.of(self.pool).run
        """The number of chunks to write together, so that writing begins soon."""

        self.writer = Writer(runtime)
        self.pins = Pins(runtime.clock, partial(_trim, self.writer))
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
            tier = Tier(plan, self.runtime)
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

    def limit(self, tier: Tier, budget: int, quotas: Mapping[str, int]) -> None:
        """Give *tier* a budget, and some tenants quotas, that it can have.

        Chunks beyond them are evicted in the background, pinned ones once their pins end.

        Raises:
            StoreError: the store cannot follow.
        """
        tier.calls.limit(budget)
        self.writer.evict_soon(tier, tier.index.limit(budget, quotas))

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

    @property
    def tenants(self) -> Mapping[bytes, str]:
        """The tenant of each namespace seen so far, by its key prefix; empty for none."""
        with self._arranging:
            return dict(self._tenants)

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
        self.names = [tier.name for tier in tiers]
        self.step = min([self._run, *[tier.step for tier in tiers if tier.step]])
        lending = {tier.name for tier in tiers if tier.lends}
        self.lending &= lending
        self.lending |= lending
        self.at_once = len(lending) == len(tiers)
        self.own = [tier for tier in tiers if not tier.calls.read_only]
        self.written = [tier for tier in tiers if tier.rules.writes is Writes.ALL]
        # In a pool of one slot, a slot for each queue would be all of it.
        least = self.pool.slot_bytes if self.pool.slots > 1 else 0
        _share_out(self.tiers, self.pool.capacity, least)
        self.writer.below = {
            tier.name: below
            for tier, below in pairwise(self.tiers)
            if below.rules.writes is Writes.EVICTED
        }

    def _learn(self, tier: Tier) -> None:
        """Fill a tier's index from its store, beside the calls that use it."""

        def work(go: bool) -> tuple[None, bool | None]:
            well = fill_index(self.runtime, tier, self.writer.evict) if go else None
            for lane in tier.lanes:
                lane.unhold()
            return None, well

        with suppress(Refused):  # for example another thread has removed the tier by now
            tier.submit(Priority.DELETE, 0, work)


def _trim(writer: Writer, tier: Tier) -> None:
    """Evict the chunks of *tier* beyond its budget, such as those pinned when it was lowered."""
    writer.evict_soon(tier, tier.index.trimmed())


def _share_out(tiers: Sequence[Tier], capacity: int, least: int) -> None:
    """Bound the queues of *tiers*, so that together they leave blocks for calls.

    Hanging reads and pending writes must not keep loads from their blocks. With n tiers that do I/O
    the pool has n + 1 parts: the queues of a tier, one for reading and one for writing, take one
    part, and the last is for calls.

    Args:
        tiers: all tiers.
        capacity: bytes of the pool.
        least: bytes of a block: a queue has room for one.
    """
    lanes = sum(len(tier.lanes) for tier in tiers)
    most = max(capacity // (lanes + 2), least)
    for tier in tiers:
        for lane in tier.lanes:
            lane.queue_bytes = min(tier.rules.lane.queue_bytes, most)
