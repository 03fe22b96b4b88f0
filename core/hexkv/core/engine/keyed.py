"""The cache by key over the tiers of one engine: what hosts use that name chunks themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import sub
from typing import TYPE_CHECKING

from hexkv.core.engine.calls import Calls
from hexkv.core.engine.guarded import GuardedHold, GuardedPublishing
from hexkv.core.io.rules import Priority, Refused
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockLease
from hexkv.core.requests.checks import check_seconds, check_window
from hexkv.core.requests.retrieve import load_prefix, retrieved
from hexkv.core.requests.store import Storing, stored
from hexkv.core.tiers.batches import Batch, Pending
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.hold import TieredHold
from hexkv.core.tiers.rules import Writes
from hexkv.ports import (
    ChunkCache,
    ChunkKey,
    ChunkSpec,
    CounterName,
    Deadline,
    DeviceKV,
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
    """Chunks on their way to the tiers; see :class:`hexkv.ports.Publishing`."""

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


class KeyedCache:
    """Chunks by key; see :class:`hexkv.ports.ChunkCache`. Ends with its engine."""

    def __init__(
        self,
        stack: TierStack,
        copier: Copier,
        pace: Pipelining,
        calls: Calls,
        pin_seconds: float,
    ) -> None:
        """Work on *stack*.

        Args:
            stack: the engine's tiers.
            copier: the engine's, which keeps the memory of late copies.
            pace: how many chunks a call copies at once.
            calls: the engine's.
            pin_seconds: how long a pin lasts that says nothing else.
        """
        self._stack = stack
        self._pool = stack.pool
        self._copier = copier
        self._pace = pace
        self._calls = calls
        self._pin_seconds = pin_seconds
        self._clock = stack.runtime.clock
        self._telemetry = stack.runtime.telemetry

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        with self._calls.call():
            found = self._stack.match(keys, deadline)
            return [None if tier is None else tier.name for tier in found]

    def hold(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> Hold:
        with self._calls.call():
            self._check(wanted)
            start = self._clock.now()

            def count(tiers: Sequence[str], reasons: Sequence[Reason]) -> None:
                _count_held(self._telemetry, tiers, reasons, self._clock.now() - start)

            hold = TieredHold(self._stack, wanted, owner, deadline, count)
            return GuardedHold(hold, self._calls.door)

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        with self._calls.call():
            self._check(wanted)
            leases: list[BlockLease] = []
            for spec in wanted:
                until = deadline if not leases else Deadline(deadline.clock, 0.0)
                try:
                    lease = self._pool.lease(spec.raw_bytes, owner, until)
                except PoolExhausted:
                    break
                lease.spec = spec
                leases.append(lease)
            return leases

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        with self._calls.call():
            keys: list[ChunkKey] = []
            for lease in leases:
                spec = lease.spec
                if spec is None or len(lease.payload) != spec.raw_bytes:
                    raise InvalidRequest("a lease does not say what it holds")
                keys.append(spec.key)
            batch = Batch(keys, leases, after)
            self._await_room(batch.size, deadline)
            return GuardedPublishing(Published(self._stack.put(batch, deadline)), self._calls.door)

    def load(self, wanted: Sequence[ChunkSpec], device: DeviceKV, deadline: Deadline) -> Retrieved:
        with self._calls.call() as owner:
            prompt = self._window(wanted, device)
            start = self._clock.now()
            got = load_prefix(
                self._stack,
                self._copier,
                prompt,
                device,
                pace=self._pace,
                owner=owner,
                deadline=deadline,
            )
            return retrieved(self._telemetry, prompt, 0, got, self._clock.now() - start)

    def save(
        self,
        wanted: Sequence[ChunkSpec],
        device: DeviceKV,
        deadline: Deadline,
        *,
        wait: bool = True,
    ) -> StoreReport:
        with self._calls.call() as owner:
            prompt = self._window(wanted, device)
            if self._calls.frozen:
                return StoreReport(prompt.length, frozen=True)
            start = self._clock.now()
            storing = Storing(
                self._stack,
                self._copier,
                device,
                pace=self._pace,
                owner=owner,
                deadline=deadline,
                wait=wait,
            )
            kept = storing.run(prompt)
            return stored(self._telemetry, prompt, kept, self._clock.now() - start)

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        with self._calls.call():
            stack = self._stack
            return stack.forget(keys, stack.tiers, deadline).chunks

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        seconds = self._pin_seconds if seconds is None else check_seconds(seconds)
        with self._calls.call():
            return self._stack.pins.pin(owner, keys, Deadline.after(self._clock, seconds))

    def unpin(self, owner: str) -> int:
        with self._calls.call():
            return self._stack.pins.unpin(owner)

    def flush(self, deadline: Deadline) -> bool:
        with self._calls.call():
            return self._stack.flush(deadline)

    def _await_room(self, size: int, deadline: Deadline) -> None:
        """Wait until the queues of all tiers have room: what they do not take is dropped."""
        for tier in self._stack.tiers:
            if tier.rules.writes is Writes.ALL:
                with suppress(Refused), tier.admit(Priority.PUT, [size], deadline):
                    pass

    def _check(self, wanted: Sequence[ChunkSpec]) -> None:
        self._check_size(max((spec.raw_bytes for spec in wanted), default=0))

    def _check_size(self, largest: int) -> None:
        if not self._pool.fits(largest):
            raise InvalidRequest(f"a chunk of {largest} bytes is larger than the pool's blocks")

    def _window(self, wanted: Sequence[ChunkSpec], device: DeviceKV) -> Prompt:
        prompt = Prompt.of(wanted)
        self._check_size(prompt.layout.chunk_bytes(max(map(sub, prompt.ends, prompt.starts))))
        check_window(device, prompt.layout, prompt.length)
        return prompt


def _count_held(
    telemetry: Telemetry, tiers: Sequence[str], reasons: Sequence[Reason], seconds: float
) -> None:
    """Count chunks that a hold brought from *tiers*, and the *reasons* why others are missing."""
    telemetry.count(CounterName.LOOKUPS, len(tiers) + len(reasons))
    for tier, chunks in Counter(tiers).items():
        telemetry.count(CounterName.HITS, chunks, tier=tier)
    for reason, chunks in Counter(reasons).items():
        telemetry.count(CounterName.MISSES, chunks, reason=reason.value)
    telemetry.observe(HistogramName.RETRIEVE, seconds)


if TYPE_CHECKING:

    def _is_a_cache(cache: KeyedCache) -> ChunkCache:
        return cache
