"""The chunk half over tiers of this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

from hexkv.core.engine.half import ChunkHalf, LayersIn, LayersOut, Located
from hexkv.core.engine.health import health_of
from hexkv.core.io.rules import Priority, Refused
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.requests.accounts import held
from hexkv.core.requests.decoding import decoded_by
from hexkv.core.requests.layers import Hosts, LayeredRetrieve, LayeredStore, TimeBudget
from hexkv.core.requests.prefetch import Prefetches, PrefetchRules, make_room
from hexkv.core.requests.prefix import match_prefix
from hexkv.core.requests.retrieve import Arrived, load_prefix
from hexkv.core.requests.store import Kept, Storing
from hexkv.core.steps import Laps
from hexkv.core.tiers.batches import Batch, Pending
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.hold import TieredHold
from hexkv.core.tiers.matching import why_absent
from hexkv.core.tiers.read.pending_reads import PendingRead
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.stores.encoding_choice import rate_to_pay
from hexkv.core.tiers.write.clearing import settle_writes
from hexkv.ports import (
    KEY_BYTES,
    Announcing,
    ChunkKey,
    ChunkSpec,
    Cleared,
    CounterName,
    Deadline,
    DeviceKV,
    Health,
    HistogramName,
    Hold,
    InvalidRequest,
    Lease,
    PoolExhausted,
    Publishing,
    Reason,
    Retrieved,
    StoreReport,
    Telemetry,
)


class Published:
    """Chunks being written to the tiers; see :class:`hexkv.ports.Publishing`."""

    def __init__(self, written: Mapping[str, Pending]) -> None:
        self._written = written

    @property
    def done(self) -> bool:
        return all(pending.done for pending in self._written.values())

    def wait(self, deadline: Deadline) -> bool:
        waits = [pending.wait(deadline) for pending in self._written.values()]
        return all(waits)

    @property
    def tiers(self) -> Mapping[str, Sequence[bool]]:
        return {name: pending.result for name, pending in self._written.items()}


class TieredHalf:
    """Chunks on the tiers of a stack; see :class:`~hexkv.core.engine.half.ChunkHalf`."""

    def __init__(
        self,
        stack: TierStack,
        prefetch: PrefetchRules = PrefetchRules(),  # noqa: B008 - frozen
        *,
        patience: float = 1.0,
    ) -> None:
        """Take ownership of *stack* and its pool.

        Args:
            stack: closed by :meth:`close`.
            prefetch: how much memory prefetches take, and for how long.
            patience: seconds that a store may take to answer which chunks it holds.
        """
        self.stack = stack
        self.runtime = stack.runtime
        self.copier = Copier()
        self.prefetches = Prefetches(stack, prefetch)
        self.announcing: Announcing | None = None  # these tiers have no other clients
        self._pool = stack.pool
        self._pace = Pipelining.of(stack.pool)
        self._hosts = Hosts()
        # Delegated without a wrapper.
        self.fits = self._pool.fits
        self.assign = stack.assign
        self.flush = stack.flush
        self.unpin = stack.pins.unpin
        self.expiring = stack.pins.until
        self.expire = stack.pins.expire
        stack.patience = patience
        stack.pool.reclaim = partial(make_room, stack, self.prefetches)
        stack.pool.first_end = self.prefetches.first_end

    @property
    def prefixes(self) -> Collection[bytes]:
        return self.stack.tenants

    def worth_loading(self, tier: str, saved: float) -> bool:
        if (rate := self.runtime.compute_rate) is None or not saved:
            return saved > 0
        least = rate_to_pay(rate, saved)
        return all(there.link.serves(least) for there in self.stack.tiers if there.name == tier)

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        found = self.stack.match(keys, deadline)
        return [None if tier is None else tier.name for tier in found]

    def hold(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> Hold:
        clock, telemetry, calls = self.runtime.clock, self.runtime.telemetry, self.runtime.calls
        start = clock.now()

        def count(tiers: Sequence[str], reasons: Sequence[Reason | None]) -> None:
            seconds = clock.now() - start
            _count_held(telemetry, wanted, tiers, reasons, seconds)
            if calls is not None and wanted:
                calls.record(held(wanted, tiers, reasons, start, seconds))

        return TieredHold(self.stack, wanted, owner, deadline, count)

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        try:
            leases = self._pool.lease_run([spec.raw_bytes for spec in wanted], owner, deadline)
        except PoolExhausted:
            return []
        for lease, spec in zip(leases, wanted, strict=False):
            lease.spec = spec
        return leases

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        keys: list[ChunkKey] = []
        for lease in leases:
            spec = lease.spec
            if spec is None or len(lease.payload) != spec.raw_bytes:
                raise InvalidRequest("a lease without a spec")
            keys.append(spec.key)
        batch = Batch(keys, leases, after)
        # Wait until the queues of all tiers have room: chunks that they refuse are dropped.
        for tier in self.stack.tiers:
            if tier.rules.writes is Writes.ALL:
                with suppress(Refused), tier.admit(Priority.PUT, [batch.size], deadline):
                    pass
        return Published(self.stack.put(batch, deadline))

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        return self.stack.forget(keys, self.stack.tiers, deadline).chunks

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        until = None if seconds is None else Deadline.after(self.runtime.clock, seconds)
        return self.stack.pins.pin(owner, keys, until)

    def locate(self, prompt: Prompt, deadline: Deadline, *, served: bool) -> Located:
        stack = self.stack
        prefix = match_prefix(stack, prompt, deadline, stack.serving if served else stack.tiers)
        missing = prefix.missing
        why = None if missing is None else why_absent(stack.tiers, stack.runtime, missing)
        return Located(prefix.whole, [tier.name for tier in prefix.tiers], why)

    def load(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        deadline: Deadline,
        laps: Laps,
        lookup_id: str | None = None,
    ) -> Arrived:
        return load_prefix(
            self.stack,
            self.copier,
            prompt,
            device,
            pace=self._pace,
            owner=owner,
            deadline=deadline,
            laps=laps,
            ready=None if lookup_id is None else self._prefetched(lookup_id, device),
        )

    def save(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        deadline: Deadline,
        laps: Laps,
        *,
        wait: bool,
    ) -> Kept:
        return self._storing(device, owner, deadline, wait=wait, laps=laps).run(prompt)

    def load_layers(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        patience: TimeBudget,
        report: Callable[[Arrived], Retrieved],
        *,
        skip: int,
        lookup_id: str | None,
    ) -> LayersIn:
        return LayeredRetrieve(
            self.stack,
            self.copier,
            prompt,
            device,
            skip=skip,
            pace=self._pace,
            owner=owner,
            patience=patience,
            hosts=self._hosts,
            ready={} if lookup_id is None else self._prefetched(lookup_id, device),
            report=report,
        )

    def _prefetched(self, lookup_id: str, device: DeviceKV) -> dict[ChunkKey, PendingRead]:
        return self.prefetches.take(lookup_id, decoded_by(self.stack.runtime, device))

    def save_layers(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        patience: TimeBudget,
        report: Callable[[Kept], StoreReport],
        *,
        wait: bool,
    ) -> LayersOut:
        return LayeredStore(
            self.stack,
            self.copier,
            prompt,
            device,
            self._storing(device, owner, patience.end(), wait=wait),
            pace=self._pace,
            owner=owner,
            patience=patience,
            hosts=self._hosts,
            report=report,
        )

    def forget_prompt(
        self, prompt: Prompt, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        chosen = self.stack.named(tiers)
        if prompt.unnamed.ends:
            return Cleared(0, {}, {tier.name: Reason.TIMED_OUT.value for tier in chosen})
        writing = settle_writes(self.runtime, chosen, deadline)
        # Tails in any chunk: the ends of earlier turns of a conversation.
        tails = [
            (key, end - start)
            for i, start in enumerate(prompt.starts[: len(prompt)])
            for key, end in zip(*prompt.tails_of(i), strict=True)
        ]
        done = self.stack.forget(prompt.keys[: prompt.full], chosen, deadline, tails=tails)
        return replace(done, left={**writing, **done.left})

    def clear(
        self, prefixes: Collection[bytes] | None, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        chosen = self.stack.named(tiers)
        writing = settle_writes(self.runtime, chosen, deadline)
        if prefixes is not None and all(len(prefix) == KEY_BYTES for prefix in prefixes):
            done = self.stack.forget(list(map(ChunkKey, prefixes)), chosen, deadline)
        else:
            done = self.stack.clear(prefixes, chosen, deadline)
        return replace(done, left={**writing, **done.left})

    def health(self, deadline: Deadline) -> Health:
        del deadline  # all of it is known here
        return health_of(self.stack, len(self.prefetches))

    def end(self, owner: str) -> None:
        self._pool.sweep(owner)
        self.stack.end(owner)

    def close(self, deadline: Deadline) -> Mapping[str, int]:
        self.stack.flush(deadline)
        self.stack.close(deadline)
        return self._pool.close()

    def _storing(
        self,
        device: DeviceKV,
        owner: str,
        deadline: Deadline,
        *,
        wait: bool,
        laps: Laps | None = None,
    ) -> Storing:
        return Storing(
            self.stack,
            self.copier,
            device,
            pace=self._pace,
            owner=owner,
            deadline=deadline,
            wait=wait,
            laps=laps or Laps(self.runtime.clock),
        )


def _count_held(
    telemetry: Telemetry,
    wanted: Sequence[ChunkSpec],
    tiers: Sequence[str],
    reasons: Sequence[Reason | None],
    seconds: float,
) -> None:
    """Count the hits by tier and the misses by reason of a hold of *wanted*."""
    tokens = [spec.tokens for spec in wanted]
    telemetry.count(CounterName.LOOKUPS, len(tokens))
    telemetry.count(CounterName.LOOKUP_TOKENS, sum(tokens))
    for tier in set(tiers):
        if not tier:
            continue
        some = sum(compress(tokens, map(tier.__eq__, tiers)))
        telemetry.count(CounterName.HITS, tiers.count(tier), tier=tier)
        telemetry.count(CounterName.HIT_TOKENS, some, tier=tier)
    for reason in set(reasons):
        if reason is None:
            continue
        some = sum(compress(tokens, [found is reason for found in reasons]))
        telemetry.count(CounterName.MISSES, reasons.count(reason), reason=reason)
        telemetry.count(CounterName.MISSED_TOKENS, some, reason=reason)
    telemetry.observe(HistogramName.RETRIEVE, seconds)


if TYPE_CHECKING:

    def _is_a_half(half: TieredHalf) -> ChunkHalf:
        return half
