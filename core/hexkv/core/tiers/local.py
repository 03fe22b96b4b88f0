"""The chunks of tiers in this process; see :class:`hexkv.ports.ChunkService`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter

from hexkv.core.tiers.batches import Batch, Pending, Published
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.evicting import background_deadline
from hexkv.core.tiers.health import health_of
from hexkv.core.tiers.holds.hold import LocalHold
from hexkv.core.tiers.holds.hold_ahead import HoldAhead
from hexkv.core.tiers.holds.layered_hold import LayeredHold
from hexkv.core.tiers.holds.recording import counting
from hexkv.core.tiers.matching import computed_again, run_of, runs, why_absent, why_dropped
from hexkv.core.tiers.read.direct import read_to_room
from hexkv.core.tiers.stores.bandwidth import rate_to_pay
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.write.clearing import settle_writes
from hexkv.ports import (
    KEY_BYTES,
    ChunkKey,
    ChunkSpec,
    Cleared,
    CounterName,
    Deadline,
    DeviceRoom,
    Health,
    HoldTerms,
    InvalidRequest,
    Lease,
    PoolExhausted,
    Reason,
    ServiceHold,
    ServicePublishing,
    WholeChunks,
    raw_sizes,
    release_all,
)

_OF_HOSTS = HoldTerms()


class LentHold(WholeChunks):
    """Chunks of the fastest tier, leased where they lie."""

    __slots__ = ("begun", "leases", "origins", "reasons")

    done = lent = True
    bytes = 0

    def __init__(self, leases: Sequence[Lease | None], tier: str) -> None:
        self.leases = leases
        self.origins: Sequence[str] = [tier] * len(leases)
        self.reasons: Sequence[Reason | None] = [None] * len(leases)
        self.begun = len(leases)

    def wait(self, deadline: Deadline, first: int | None = None) -> bool:
        del deadline, first
        return True

    def bring(self, group: int, deadline: Deadline) -> int:
        del group, deadline
        return len(self.leases)

    def release(self) -> None:
        leases, self.leases = self.leases, ()
        if leases:
            release_all(leases)  # type: ignore[arg-type] # all were lent


class LocalChunks:
    """Chunks on the tiers of a stack, in blocks of its pool."""

    near = True
    write_step = property(attrgetter("stack.step"))

    def __init__(self, stack: TierStack, *, patience: float = 1.0) -> None:
        """Take ownership of *stack* and its pool.

        Args:
            stack: closed by :meth:`close`.
            patience: seconds that a store may take to answer which chunks it holds.
        """
        self.stack = stack
        stack.patience = patience
        self._runtime = stack.runtime
        self._pool = stack.pool
        self.pool_bytes = stack.pool.capacity
        self.block_bytes: int | None = stack.pool.slot_bytes
        # Delegated without a wrapper.
        self.fits = stack.pool.fits
        self.ledger = stack.pool.ledger
        self.assign = stack.assign
        self.touch = stack.touch
        self.lend = stack.lend
        self.compute_rate = stack.runtime.computing.rate
        self.in_place: Collection[str] = stack.lending
        self.flush = stack.flush
        self.unpin = stack.pins.unpin
        self.expiring = stack.pins.until
        self.expire = stack.pins.expire
        self._reap: Callable[[], bool] = lambda: False
        stack.pool.reclaim = self._make_room

    def computes(self, tokens_per_second: float | None) -> None:
        computing = self._runtime.computing
        computing.measured(tokens_per_second)
        self.compute_rate = computing.rate

    def match(
        self,
        keys: Sequence[ChunkKey],
        deadline: Deadline,
        *,
        served: bool = True,
        below: int = 0,
        loads: bool = False,
    ) -> Sequence[str | None]:
        stack = self.stack
        every = stack.at_once or not served
        tiers = stack.tiers if every else stack.serving(keys, loads=loads, tails=below > 0)
        kept = keeping(tiers, below) if below else tiers
        found = stack.find_tiers(keys, deadline, kept)
        first = found[0] if found else None
        if found.count(first) == len(found):  # the usual case
            return [None if first is None else first.name] * len(found)
        if first is not None and not loads and tiers is not stack.tiers:
            stack.answers.keep(keys[found.index(None) - 1 if None in found else -1], tiers)
        return [None if tier is None else tier.name for tier in found]

    def keep(self, owner: str, keys: Sequence[ChunkKey]) -> None:
        self.stack.pins.pin(owner, keys)

    def why_absent(self, key: ChunkKey) -> Reason | None:
        return why_absent(self.stack.tiers, self._runtime, key)

    def why_dropped(self, key: ChunkKey) -> Reason:
        return why_dropped(self.stack.tiers, self._runtime, key)

    def worth_loading(self, tier: str, saved: float) -> bool:
        if (rate := self.compute_rate) is None or not saved:
            return saved > 0
        there = self._named(tier)
        return there is None or there.link.serves(rate_to_pay(rate, saved))

    def spare(self, tier: str, tokens: int) -> float:
        computes = self.compute_rate
        if computes is None:
            return inf
        there = self._named(tier)
        if there is None or (brings := there.link.tokens_rate) is None:
            return inf
        return max(0.0, tokens / computes - tokens / brings)

    def hold(
        self,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        terms: HoldTerms = _OF_HOSTS,
    ) -> ServiceHold:
        stack, found = self.stack, terms.found
        if terms.passing and found:
            tier = stack.tiers[0]
            if tier.lends and found.count(tier.name) == len(found):  # the usual case
                lent = tier.calls.get_lease([spec.key for spec in wanted], owner)
                as_wanted = [None if it is None else it.spec for it in lent] == wanted
                if as_wanted or not stack.fetcher.fit(lent, wanted, owner, terms.encoded):
                    return LentHold(lent, tier.name)
                release_all([lease for lease in lent if lease is not None])
        if terms.layered and wanted:
            return LayeredHold(stack, wanted, owner, deadline, terms)
        if terms.ahead:
            return HoldAhead(stack, wanted, owner, deadline, terms)
        ended = counting(self._runtime, wanted) if terms is _OF_HOSTS else None
        return LocalHold(stack, wanted, owner, deadline, terms, ended)

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        try:
            leases = self._pool.lease_run(raw_sizes(wanted), owner, deadline)
        except PoolExhausted:
            return []
        for lease, spec in zip(leases, wanted, strict=False):
            lease.spec = spec
        return leases

    def reads_to_devices(self, tier: str) -> bool:
        there = self._named(tier)
        return there is not None and there.calls.reads_to_devices

    def read_to_room(
        self, tier: str, wanted: Sequence[ChunkSpec], room: DeviceRoom, deadline: Deadline
    ) -> int:
        there = self._named(tier)
        return 0 if there is None else read_to_room(self._runtime, there, wanted, room, deadline)

    def reserve(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> ServiceHold:
        return LentHold(self.allocate(wanted, owner, Deadline(deadline.clock, 0.0)), "")

    def publish(
        self,
        leases: Sequence[Lease],
        after: ChunkKey | None,
        deadline: Deadline,
        *,
        transfer: bool = False,
        keep: str | None = None,
        wait: bool = True,
    ) -> ServicePublishing:
        if not transfer:
            _check(leases)
        keys = [lease.spec.key for lease in leases]  # type: ignore[union-attr] # checked
        stack, give = self.stack, self._pool.hand_over if transfer else None
        batch = Batch(keys, leases, after, give, deadline if wait else None, beside=not wait)
        on_stored = None
        if keep is not None:
            stack.pins.begin(keep)
            on_stored = partial(stack.pins.land, keep)
        last = len(keys) - 1
        if last > 0 and leases[last].spec.tokens < leases[0].spec.tokens:  # type: ignore[union-attr]
            # Not every tier keeps a tail: it is written by itself.
            first = stack.put(batch.part(0, last), deadline, on_stored)
            tail = stack.put(batch.part(last, last + 1), deadline, on_stored)
            none = Pending([(1, None)])
            written: Mapping[str, Pending] = {
                name: Pending([*pending.parts, *tail.get(name, none).parts])
                for name, pending in first.items()
            }
        else:
            written = stack.put(batch, deadline, on_stored)
        return Published(stack.tiers, keys, written)

    def stored(
        self,
        keys: Sequence[ChunkKey],
        after: ChunkKey | None,
        owner: str,
        deadline: Deadline,
        *,
        below: int = 0,
        asks: bool = True,
    ) -> Sequence[bool]:
        stack = self.stack
        # Read-only tiers, which others fill, are not queried: their chunks may disappear, so this
        # cache keeps its own.
        own = keeping(stack.own, below) if below else stack.own
        found = stack.find_tiers(keys, deadline, own, asks=asks)
        if not stack.at_once:
            self._retry_backlogs(keys, after, owner)
        if not any(found):
            return [False] * len(keys)
        slow = () if self.compute_rate is None else computed_again(own, self.compute_rate)
        if None not in found and not slow:
            stack.touch(keys)
            return [True] * len(keys)
        # New chunks must not look younger than the beginning of their prompt.
        stack.touch([key for key, tier in zip(keys, found, strict=True) if tier is not None])
        return [tier is not None and tier not in slow for tier in found]

    def drop(self, wanted: Sequence[ChunkSpec], reason: Reason) -> bool:
        self.stack.drop(wanted, reason)
        return True

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        return self.stack.forget(keys, self.stack.tiers, deadline).chunks

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        until = None if seconds is None else Deadline.after(self._runtime.clock, seconds)
        return self.stack.pins.pin(owner, keys, until)

    def clear(
        self,
        prefixes: Collection[bytes] | None,
        tiers: Sequence[str] | None,
        deadline: Deadline,
        tails: Sequence[tuple[ChunkKey, int]] = (),
    ) -> Cleared:
        chosen = self.stack.named(tiers)
        writing = settle_writes(self._runtime, chosen, deadline)
        if prefixes is not None and all(len(prefix) == KEY_BYTES for prefix in prefixes):
            keys = list(map(ChunkKey, prefixes))
            done = self.stack.forget(keys, chosen, deadline, tails=tails)
        else:
            done = self.stack.clear(prefixes, chosen, deadline)
        return replace(done, left={**writing, **done.left})

    def health(self, deadline: Deadline) -> Health | None:
        del deadline  # all of it is known here
        return health_of(self.stack)

    def on_shortage(self, reap: Callable[[], bool], first_end: Callable[[], float]) -> None:
        self._reap = reap
        self._pool.first_end = first_end

    def sweep(self, owner: str) -> int:
        left, stack = self._pool.sweep(owner), self.stack
        if owner in stack.pins.calls:  # most calls pin none
            stack.pins.end(owner)
        for tier in stack.tiers:
            # Writes that did not end, to tiers in memory: no worker would delete them.
            if tier.lends and (undone := tier.index.orphans()):
                tier.delete(undone, background_deadline(self._runtime))
        return left

    def close(self, deadline: Deadline | None = None) -> None:
        until = deadline or background_deadline(self._runtime)
        self.stack.flush(until)
        self.stack.close(until)
        self._pool.close()

    def _named(self, name: str) -> Tier | None:
        """Return the tier *name*; ``None`` once it was detached."""
        return next((tier for tier in self.stack.tiers if tier.name == name), None)

    def _make_room(self, size: int) -> bool:
        """Make room in the pool: end holds past their time, or else evict from memory."""
        made = self._reap() or self.stack.make_room(size)
        if made:
            self._runtime.telemetry.count(CounterName.POOL_RECLAIMS, 1)
        return made

    def _retry_backlogs(self, keys: Sequence[ChunkKey], after: ChunkKey | None, owner: str) -> None:
        """Queue writes of tiers' backlogs, of those of *keys* that memory still holds.

        Does not wait for them; chunks that a tier refuses again are offered the next time.
        """
        for tier in self.stack.tiers:
            if tier.lends or not tier.backlog.keys or tier.refuses:
                continue
            due = set(tier.backlog.take(keys))
            if not due:
                continue
            with ExitStack() as held:
                leases = {
                    i: held.enter_context(lease)
                    for i, key in enumerate(keys)
                    if key in due and (lease := self._lent(key, owner)) is not None
                }
                for run in runs(list(leases)):
                    before = keys[run[0] - 1] if run[0] else after
                    part = keys[run[0] : run[-1] + 1]
                    batch = Batch(part, [leases[i] for i in run], before)
                    self.stack.writer.put(tier, batch, background_deadline(self._runtime))

    def _lent(self, key: ChunkKey, owner: str) -> Lease | None:
        """Return a share of the block in which memory keeps a chunk, or ``None``."""
        for tier in self.stack.tiers:
            for lease in run_of(tier.calls.get_lease([key], owner)):
                return lease
        return None


def _check(leases: Sequence[Lease]) -> None:
    """Check that each of *leases* has the spec of its payload.

    Raises:
        InvalidRequest: one has not.
    """
    for lease in leases:
        if lease.spec is None or len(lease.payload) != lease.spec.raw_bytes:
            raise InvalidRequest("a lease does not say what it holds")


def keeping(tiers: Sequence[Tier], below: int) -> list[Tier]:
    """Return those of *tiers* that keep chunks of fewer than *below* tokens."""
    return [tier for tier in tiers if tier.rules.shortest < below]
