"""Holds: reads in progress, then leases that stay until they are released.

A chunk that its tier does not bring is read from the next tier that may hold it. Chunks are not
requested by token, and a gap does not end the hold: the caller decides about missing chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.matching import runs, serving, why_absent
from hexkv.core.tiers.read.pending_reads import PendingRead
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkSpec, Deadline, Hold, Lease, Reason, release_all


class TieredHold:
    """Chunks on their way from the tiers; see :class:`hexkv.ports.Hold`."""

    def __init__(
        self,
        stack: TierStack,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        ended: Callable[[Sequence[str], Sequence[Reason | None]], None],
    ) -> None:
        """Begin to read *wanted*; waits for memory only while no block is held.

        Args:
            stack: the tiers.
            wanted: the chunks.
            owner: the owner of the leases.
            deadline: the deadline of the reads.
            ended: called once all reads have ended, unless the hold was released before: with the
                tier that each of *wanted* came from, and the reason why it is missing.
        """
        self._stack = stack
        self._wanted = wanted
        self._owner = owner
        self._deadline = deadline
        self._ended = ended
        self._leases: list[Lease | None] = [None] * len(wanted)
        self._origins = [""] * len(wanted)
        self._reasons: list[Reason | None] = [None] * len(wanted)
        self._claims: dict[int, PendingRead] = {}
        self._tried: dict[int, set[str]] = {}
        self._released = False
        self._lock = Lock()
        self._settling = Lock()
        """Held while a read is settled or dropped, which only one thread may do."""

        try:
            self._begin(wanted)
            if not self._claims:
                self._end()
        except BaseException:
            self.release()
            raise

    @property
    def done(self) -> bool:
        return self.wait(Deadline(self._deadline.clock, 0.0))

    def wait(self, deadline: Deadline) -> bool:
        while self._claims:
            with self._lock:
                number, claim = next(iter(self._claims.items()), (0, None))
            if claim is None:
                break
            # A read is late after its own deadline, whatever deadline the waiting caller has.
            final = deadline.at >= self._deadline.at
            until = self._deadline if final else deadline
            if not claim.ready(until, final=final) and not self._deadline.expired:
                return False
            self._take(number, claim)
        return True

    @property
    def leases(self) -> Sequence[Lease | None]:
        with self._lock:
            return [] if self._released else list(self._leases)

    @property
    def reasons(self) -> Sequence[Reason | None]:
        with self._lock:
            return list(self._reasons)

    @property
    def origins(self) -> Sequence[str]:
        with self._lock:
            return list(self._origins)

    def release(self) -> None:
        with self._settling:
            with self._lock:
                self._released = True
                claims, self._claims = list(self._claims.values()), {}
                leases, self._leases = self._leases, []
            for claim in claims:
                claim.drop()
            if held := [lease for lease in leases if lease is not None]:
                release_all(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _begin(self, wanted: Sequence[ChunkSpec]) -> None:
        keys = [spec.key for spec in wanted]
        found = self._stack.match(keys, self._deadline)
        tier = found[0] if found else None
        if tier is not None and tier.lends and found.count(tier) == len(found):  # the usual case
            self._stack.touch(keys)
            self._lend(range(len(keys)), tier, wanted)
            return
        here = [i for i, tier in enumerate(found) if tier is not None]
        self._stack.touch([keys[i] for i in here])
        wait: Deadline | None = self._deadline
        full = False
        for run in runs(here):
            for tier, part in groupby(run, found.__getitem__):
                numbers = list(part)
                specs = wanted[numbers[0] : numbers[-1] + 1]
                if tier is None:
                    continue
                if tier.lends:
                    if self._lend(numbers, tier, specs):
                        wait = None
                    continue
                claims = (
                    []
                    if full
                    else self._stack.begin(
                        specs,
                        [tier] * len(specs),
                        self._owner,
                        self._deadline,
                        wait=wait,
                        keeps=True,
                    )
                )
                for number, claim in zip(numbers, claims, strict=False):
                    self._claim(number, claim)
                    wait = None
                full = len(claims) < len(numbers)
                for number in numbers[len(claims) :]:
                    self._reasons[number] = Reason.REFUSED
        for number, tier in enumerate(found):
            if tier is None:
                stack = self._stack
                self._reasons[number] = why_absent(stack.tiers, stack.runtime, keys[number])

    def _lend(self, numbers: Sequence[int], tier: Tier, specs: Sequence[ChunkSpec]) -> bool:
        """Take neighbouring chunks of a tier in memory. True if any is present."""
        lent, why = self._stack.fetcher.lend(tier, specs, self._owner)
        start, end = numbers[0], numbers[-1] + 1
        self._leases[start:end] = lent
        self._origins[start:end] = [tier.name] * len(lent)
        for i, reason in why.items():  # evicted since the lookup; another tier may hold it
            self._origins[start + i] = ""
            self._claim(start + i, PendingRead(specs[i], tier.name, None, why=reason))
        return len(why) < len(lent)

    def _claim(self, number: int, claim: PendingRead) -> None:
        self._claims[number] = claim
        self._tried[number] = {claim.tier}

    def _take(self, number: int, claim: PendingRead) -> None:
        """Record the result of a read that has ended, or is late; begin another where it helps."""
        with self._settling:
            if self._claims.get(number) is not claim:
                return  # released by now, or settled by another thread
            lease = claim.settle(self._owner, Deadline(self._deadline.clock, 0.0))
            other = None if lease is not None else self._elsewhere(number, claim)
            with self._lock:
                del self._claims[number]
                if other is not None:  # after the others, whose reads are in progress
                    self._claims[number] = other
                elif lease is not None:
                    self._leases[number] = lease
                    self._origins[number] = claim.tier
                else:
                    self._reasons[number] = claim.why or Reason.FAILED
            if not self._claims:
                self._end()

    def _end(self) -> None:
        """Copy chunks that came from slower tiers to faster ones, and report the result."""
        tiers = [tier for tier in self._origins if tier]
        if tiers.count(self._stack.tiers[0].name) < len(tiers):
            self._promote()
        self._ended(self._origins, self._reasons)

    def _promote(self) -> None:
        keys = [spec.key for spec in self._wanted]
        for run in runs([i for i, lease in enumerate(self._leases) if lease is not None]):
            start, end = run[0], run[-1] + 1
            leases = [lease for lease in self._leases[start:end] if lease is not None]
            batch = Batch(keys[start:end], leases, keys[start - 1] if start else None)
            self._stack.promote(batch, self._origins[start:end], self._deadline)

    def _elsewhere(self, number: int, claim: PendingRead) -> PendingRead | None:
        """Begin to read the chunk from a tier that was not tried yet, if one may hold it."""
        tried = self._tried[number]
        now = Deadline(self._deadline.clock, 0.0)
        if self._deadline.expired:
            return None
        for tier in serving(self._stack.tiers, self._stack.runtime.compute_rate):
            if tier.name in tried or not tier.rules.reads or tier.off:
                continue
            tried.add(tier.name)
            # A remote store is read without a lookup: absence is an answer, too.
            key = claim.spec.key
            if tier.calls.faults.barred([key]) or not (tier.remote or tier.contains([key], now)[0]):
                continue
            begun = self._stack.begin([claim.spec], [tier], self._owner, self._deadline, keeps=True)
            if begun:
                return begun[0]
        return None


if TYPE_CHECKING:

    def _is_a_hold(hold: TieredHold) -> Hold:
        return hold
