"""The tier stack: all tiers are written, the first that answers is read, faster ones get copies.

Writing to all tiers keeps eviction simple: the slower tiers still hold a chunk that one tier drops,
so eviction copies nothing (a tier may be configured to take only evicted chunks). A read tries the
tiers in order, chunk by chunk; a chunk counts as a hit only when its frame has arrived and was
verified.

Indexes answer lookups at once. A store with an incomplete index is queried by a worker of its own
lane, so that a slow one costs its deadline, and delays no other answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.io.ticket import Ticket
from hexkv.core.tiers.arranging import Arrangement
from hexkv.core.tiers.batches import Batch, Pending
from hexkv.core.tiers.evicting import background_deadline
from hexkv.core.tiers.matching import Found, run_of, runs
from hexkv.core.tiers.read.lookups import LookupAnswers
from hexkv.core.tiers.read.reading import Fetcher
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier, TierPlan
from hexkv.core.tiers.write.clearing import Gone, clear, forget, part_with
from hexkv.core.tiers.write.writing import OnStored
from hexkv.ports import ChunkKey, ChunkSpec, Cleared, Deadline, Lease, Reason, release_all


class TierStack(Arrangement):
    """Chunks on tiers from fastest to slowest, over one pool. Safe from any thread."""

    def __init__(self, plans: Iterable[TierPlan], runtime: TierRuntime) -> None:
        """Make the tiers of *plans*. Raises as :class:`Arrangement`."""
        super().__init__(plans, runtime)
        self.fetcher = Fetcher(runtime)
        self.patience = 1.0
        """Seconds that a store may take to answer a lookup."""

        self.answers = LookupAnswers(runtime.clock)
        self.moves = 0
        """How often chunks were deleted from a tier because another tier holds them now."""

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[Tier]:
        """Return the first tier of each chunk, up to the first chunk that no tier holds."""
        return run_of(self.find_tiers(keys, deadline))

    def serving(
        self,
        keys: Sequence[ChunkKey],
        *,
        loads: bool = False,
        ahead: bool = False,
        tails: bool = False,
    ) -> Sequence[Tier]:
        """Return the tiers that one request for *keys* is to be served from.

        These bring KV sooner than it is computed, or are to be measured again.

        Args:
            keys: the chunks.
            loads: they are loaded next: a lookup's answer holds, and is forgotten.
            ahead: they are read for a later load: a lookup's answer holds, and stays.
            tails: a further question of the same request, which is not counted.
        """
        rate = self.runtime.computing.rate
        if rate is None or not keys or self.at_once:
            return self.tiers  # no rates to compare, or all of them in memory
        known = self.answers.find(keys[-1], take=loads) if loads or ahead else None
        if known is not None:
            return [tier for tier in known if tier in self.tiers]
        if tails:
            tiers = [tier for tier in self.tiers if not tier.link.slower_than(rate)]
        else:
            tiers = [tier for tier in self.tiers if tier.link.serves(rate)]
        if not loads:
            self.answers.keep(keys[-1], tiers)
        return tiers

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
            moves, until = self.moves, deadline
            if not self.at_once:  # a tier that answers after its lookup budget counts as a miss
                soon = Deadline.after(self.runtime.clock, self.patience)
                until = soon if soon.at < deadline.at else deadline
            search: _Search | None = None
            for tier in asked:
                if not tier.rules.reads:
                    continue
                some = keys if search is None else search.asked()
                have: Sequence[bool] = ()
                if tier.lends:  # in memory: it answers at once
                    have = tier.contains(some, until)
                elif some:
                    have = contains_by_deadline(tier, some, until, asks=asks)
                if True in have:
                    if search is None:
                        if False not in have:  # the usual case, and the longest
                            return [tier] * len(keys)
                        search = _Search(keys)
                    search.learn(tier, have)
            found: Found = [None] * len(keys) if search is None else search.found
            # A chunk moved to a faster tier during the lookup was found on neither.
            if moves == self.moves or None not in found or deadline.expired:
                return found

    def lend(self, wanted: Sequence[ChunkSpec], owner: str) -> tuple[Sequence[Lease], str]:
        """Return leases of chunks that the first tier keeps raw in memory: of all, or of none."""
        if not (tiers := self.tiers):
            return (), ""
        tier, keys = tiers[0], [spec.key for spec in wanted]
        now = Deadline(self.runtime.clock, 0.0)
        if not (tier.lends and tier.rules.reads and all(tier.contains(keys, now))):
            return (), tier.name
        lent = tier.calls.get_lease(keys, owner)
        if [None if lease is None else lease.spec for lease in lent] == wanted:
            return lent, tier.name  # type: ignore[return-value] # none is missing
        release_all([lease for lease in lent if lease is not None])
        return (), tier.name

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
            self.runtime.ages.used(self.names, keys)

    def promote(self, batch: Batch, origin: Sequence[str], deadline: Deadline) -> None:
        """Copy chunks to the tiers that are faster than the one each came from (*origin*).

        Tiers in memory take the blocks at once; those with lanes write them in the background. A
        tier that would have to evict chunks for which the queue below has no room takes none: these
        chunks have their place, and those would be lost.
        """
        if origin.count(self.tiers[0].name) == len(origin):
            return
        order = {tier.name: ordinal for ordinal, tier in enumerate(self.tiers)}
        places = [order.get(name, 0) for name in origin]
        for ordinal, tier in enumerate(self.tiers[: max(places, default=0)]):
            if tier.rules.promotes and self._has_room(tier, batch):
                until = deadline if tier.lends else background_deadline(self.runtime)
                if min(places) > ordinal:  # usually all are from one tier
                    self.writer.put(tier, batch, until)
                    continue
                for run in runs([i for i, place in enumerate(places) if place > ordinal]):
                    self.writer.put(tier, batch.part(run[0], run[-1] + 1), until)

    def _has_room(self, tier: Tier, batch: Batch) -> bool:
        """True if *tier* has room for *batch*, or the queue below for as much that is evicted."""
        below = self.writer.below.get(tier.name)
        if below is None or below.takes(size := batch.size):
            return True
        return tier.index.budget is None or tier.index.used + size <= tier.index.budget

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
        tiers, written = self.written, {}
        for tier in tiers:
            part = batch if tier is tiers[-1] else batch.kept()
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

    def drop(self, specs: Sequence[ChunkSpec], reason: Reason) -> None:
        """Count chunks that were written to none of the tiers that take new ones."""
        for tier in self.written:
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


def contains_by_deadline(
    tier: Tier, keys: Sequence[ChunkKey], deadline: Deadline, *, asks: bool = True
) -> Sequence[bool]:
    """Return True for each chunk that *tier* holds; chunks unknown at the deadline are False.

    Without *asks*, use the index only; do not query the store.
    """
    if tier.off:
        return [False] * len(keys)
    if not tier.remote:
        return tier.contains(keys, deadline)
    known = tier.known(keys)
    if all(known) or not asks:
        return known
    ticket = _peek(tier, keys, deadline, lambda _: None)
    if ticket is None or not ticket.wait(deadline):
        return known
    return ticket.result or known


def find_tiers_soon(
    tiers: Sequence[Tier],
    keys: Sequence[ChunkKey],
    deadline: Deadline,
    then: Callable[[Found], None],
) -> None:
    """Call *then* with the result of a search of *tiers*: at once if no store has to be queried.

    Otherwise the worker that queried the last store calls it; always, and once.
    """
    _Search(keys).go_on(tiers, deadline, then)


class _Search:
    """The intermediate result of a lookup."""

    def __init__(self, keys: Sequence[ChunkKey]) -> None:
        self.found: list[Tier | None] = [None] * len(keys)
        self.unknown: Sequence[int] = range(len(keys))
        self._keys = keys

    def asked(self) -> Sequence[ChunkKey]:
        """The chunks that were found on no tier yet."""
        if len(self.unknown) == len(self._keys):
            return self._keys
        return [self._keys[i] for i in self.unknown]

    def learn(self, tier: Tier, have: Sequence[bool]) -> None:
        """Record which of :meth:`asked` *tier* holds."""
        if True not in have:
            return
        if len(have) == len(self._keys) and False not in have:  # the usual case, and the longest
            self.found = [tier] * len(have)
            self.unknown = ()
            return
        for i, here in zip(self.unknown, have, strict=True):
            if here:
                self.found[i] = tier
        self.unknown = [i for i in self.unknown if self.found[i] is None]

    def go_on(
        self, tiers: Sequence[Tier], deadline: Deadline, then: Callable[[Found], None]
    ) -> None:
        """Look for the rest on *tiers*, and call *then* with all; see :func:`find_tiers_soon`."""
        for i, tier in enumerate(tiers):
            if not self.unknown:
                break
            if not tier.rules.reads or tier.off:
                continue
            asked = self.asked()
            if not tier.remote or all(tier.known(asked)):
                self.learn(tier, tier.contains(asked, deadline))
                continue
            # No closure: one that refers to itself would keep a hold's leases until a collection.
            answered = partial(self._answered, tier, tiers[i + 1 :], deadline, then)
            if _peek(tier, asked, deadline, answered) is not None:
                return
        then(self.found)

    def _answered(
        self,
        tier: Tier,
        others: Sequence[Tier],
        deadline: Deadline,
        then: Callable[[Found], None],
        have: Sequence[bool],
    ) -> None:
        self.learn(tier, have)
        self.go_on(others, deadline, then)


def _peek(
    tier: Tier,
    keys: Sequence[ChunkKey],
    deadline: Deadline,
    then: Callable[[Sequence[bool]], None],
) -> Ticket[Sequence[bool]] | None:
    """Have a worker query the store, and call *then*; ``None`` if the lane refuses."""

    def work(go: bool) -> tuple[Sequence[bool], bool | None]:
        have: Sequence[bool] = tier.known(keys)
        well: bool | None = None
        if go:
            unanswered = tier.calls.unanswered
            have = tier.contains(keys, deadline)
            well = tier.calls.unanswered == unanswered
        then(have)
        return have, well

    try:
        return tier.submit(Priority.PEEK, 0, work, deadline)
    except Refused:
        return None
