"""Holds: reads in progress, then leases that stay until they are released.

A chunk that its tier does not bring is read from the next tier that may hold it. Chunks are not
requested by token, and a gap does not end the hold: the caller decides about missing chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, groupby
from threading import Lock

from hexkv.core.io.rules import Priority
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.holds.recording import Ended
from hexkv.core.tiers.matching import Found, runs, why_absent
from hexkv.core.tiers.read.pending_reads import Fetch, PendingRead
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    ChunkSpec,
    Deadline,
    HoldTerms,
    Lease,
    Reason,
    WholeChunks,
    frame_bytes,
    release_all,
)


class LocalHold(WholeChunks):
    """Chunks on their way from the tiers; see :class:`hexkv.ports.ServiceHold`.

    It waits for memory only while it holds none: no two calls wait for each other's.
    """

    def __init__(
        self,
        stack: TierStack,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        terms: HoldTerms,
        ended: Ended | None = None,
    ) -> None:
        """Begin to read *wanted*.

        Args:
            stack: the tiers.
            wanted: the chunks.
            owner: the owner of the leases.
            deadline: the deadline of the reads.
            terms: how to read.
            ended: called once all reads have ended, unless the hold was released before.
        """
        self._stack = stack
        self._wanted = wanted
        self._owner = owner
        self._deadline = deadline
        self._terms = terms
        self._encoded = terms.encoded
        self._ended = ended
        self._leases: list[Lease | None] = [None] * len(wanted)
        self._origins = [""] * len(wanted)
        self._reasons: list[Reason | None] = [None] * len(wanted)
        self._claims: dict[int, PendingRead] = {}
        self._tried: dict[int, set[str]] = {}
        self._promoted = 0
        self._released = False
        self._in_order = terms.passing or terms.ahead or terms.layered
        """True for a request that uses no chunk behind a missing one."""

        self._lock = Lock()
        self._settling = Lock()
        """Held while a read is settled or dropped, which only one thread may do."""

        try:
            self._start()
        except BaseException:
            self.release()
            raise

    @property
    def done(self) -> bool:
        return self.wait(Deadline(self._deadline.clock, 0.0))

    def wait(self, deadline: Deadline, first: int | None = None) -> bool:
        # A read is late after its own deadline, whatever deadline the waiting caller has.
        final = deadline.at >= self._deadline.at
        until = self._deadline if final else deadline
        while self._claims:
            with self._lock:
                number, claim = next(iter(self._claims.items()), (0, None))
            if claim is None or (first is not None and number >= first and self._in_order):
                break
            ticket = None if claim.fetch is None else claim.fetch.ticket
            if ticket is not None:
                ended = ticket.wait(until) if final else ticket.peek(until)
                if not ended and not self._deadline.expired:
                    return False
            self._take(claim.fetch, first)
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

    @property
    def begun(self) -> int:
        reasons = self._reasons
        return next((i for i, why in enumerate(reasons) if why is not None), len(reasons))

    @property
    def bytes(self) -> int:
        return sum([frame_bytes(self._wanted[number].raw_bytes) for number in self._tried])

    def keep(self, deadline: Deadline, encoded: Collection[str] = ()) -> bool:
        del deadline
        self._encoded = encoded
        return True

    def bring(self, group: int, deadline: Deadline) -> int:
        if not group:
            self.wait(deadline)
        with self._lock:
            here = self._leases.index(None) if None in self._leases else len(self._leases)
            behind, self._leases[here:] = self._leases[here:], [None] * (len(self._leases) - here)
        if held := [lease for lease in behind if lease is not None]:
            release_all(held)
        return here

    def used(self, deadline: Deadline) -> None:
        """Copy the chunks that came from slower tiers to faster ones."""
        start, fastest = self._promoted, self._stack.tiers[0].name
        self._promoted = end = self._arrived()
        origins = self._origins[start:end]
        if origins.count(fastest) == len(origins):
            return
        if None not in self._leases[start:end]:
            self._promote(start, end, deadline)
            return
        for run in runs([i for i in range(start, end) if self._leases[i] is not None]):
            self._promote(run[0], run[-1] + 1, deadline)

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

    def _start(self) -> None:
        """Find the chunks and begin to read them."""
        self._begin(self._find())
        if not self._claims:
            self._end()

    def _find(self) -> Found:
        """Return the tier of each chunk."""
        names = self._terms.found
        if names is not None:
            by_name = {tier.name: tier for tier in self._stack.tiers}
            return list(map(by_name.get, names))  # one that was detached by now has none
        keys = [spec.key for spec in self._wanted]
        tiers = self._stack.serving(keys, loads=True)
        if (rate := self._terms.rate) is not None:
            tiers = [tier for tier in tiers if not tier.link.slower_than(rate)]
        found = self._stack.find_tiers(keys, self._deadline, tiers)
        if not self._terms.passing:
            here = [key for key, tier in zip(keys, found, strict=True) if tier is not None]
            self._stack.touch(here)
        return found

    def _begin(self, found: Found) -> None:
        terms, stack = self._terms, self._stack
        wait = None if terms.ahead else (terms.wait or self._deadline)
        priority = Priority.PREFETCH if terms.ahead else Priority.GET
        full, left = False, terms.most
        alike = bool(found) and found[0] is not None and found.count(found[0]) == len(found)
        here = [range(len(found))] if alike else runs([i for i, t in enumerate(found) if t])
        for run in here:
            for tier, part in groupby(run, found.__getitem__):
                numbers = list(part)
                specs = self._wanted[numbers[0] : numbers[-1] + 1]
                if tier is None or (full and (terms.passing or not tier.lends)):
                    self._reasons[numbers[0] : numbers[-1] + 1] = [Reason.REFUSED] * len(numbers)
                    continue
                if tier.lends:
                    if terms.ahead:  # it needs no read; a lease would only keep it there
                        self._reasons[numbers[0] : numbers[-1] + 1] = [Reason.PRESENT] * len(specs)
                    elif self._lend(numbers, tier, specs):
                        wait = None
                    continue
                if left is not None:
                    ends = accumulate([frame_bytes(spec.raw_bytes) for spec in specs])
                    specs = specs[: sum(end <= left for end in ends)]
                claims = stack.fetcher.begin(
                    tier,
                    specs,
                    self._owner,
                    self._deadline,
                    priority,
                    wait=wait,
                    keeps=not (terms.passing or terms.ahead),
                    encoded=terms.encoded,
                )
                for number, claim in zip(numbers, claims, strict=False):
                    self._claim(number, claim)
                    wait = None
                if left is not None:
                    left -= sum([frame_bytes(spec.raw_bytes) for spec in specs[: len(claims)]])
                full = len(claims) < len(numbers)
                for number in numbers[len(claims) :]:
                    self._reasons[number] = Reason.REFUSED
        for number, tier in enumerate(found) if None in found else ():
            if tier is None:
                key = self._wanted[number].key
                self._reasons[number] = why_absent(stack.tiers, stack.runtime, key, terms.rate)

    def _lend(self, numbers: Sequence[int], tier: Tier, specs: Sequence[ChunkSpec]) -> bool:
        """Take neighbouring chunks of a tier in memory. True if any is present."""
        lent = tier.calls.get_lease([spec.key for spec in specs], self._owner)
        why = self._stack.fetcher.fit(lent, specs, self._owner, self._encoded)
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

    def _take(self, fetch: Fetch | None, first: int | None) -> None:
        """Record the results of a read that has ended, or is late: of chunks up to *first*."""
        now = Deadline(self._deadline.clock, 0.0)
        with self._settling:
            if not self._claims:
                return  # released by now, or settled by another thread
            came: dict[int, tuple[PendingRead, Lease]] = {}
            lost: tuple[int, PendingRead] | None = None
            for number, claim in list(self._claims.items()):  # none if it was released by now
                behind = first is not None and number >= first and self._in_order
                if claim.fetch is not fetch or behind:
                    break
                lease = claim.settle(self._owner, now, self._encoded)
                if lease is None:
                    lost = number, claim
                    break
                came[number] = claim, lease
            with self._lock:
                for number, (claim, lease) in came.items():
                    del self._claims[number]
                    self._leases[number], self._origins[number] = lease, claim.tier
            if lost is not None:
                self._lose(*lost)
            if not self._claims:
                self._end()

    def _lose(self, number: int, claim: PendingRead) -> None:
        """Read a chunk that did not come from another tier, or record why it is missing."""
        other = self._elsewhere(number, claim)
        behind: list[PendingRead] = []
        with self._lock:
            del self._claims[number]
            if other is None:
                self._reasons[number] = claim.why or Reason.FAILED
                if self._in_order:
                    behind, self._claims = list(self._claims.values()), {}
            elif self._in_order:
                self._claims = {number: other, **self._claims}
            else:
                self._claims[number] = other  # behind those whose reads are in progress
        for left in behind:
            left.drop()

    def _end(self) -> None:
        """Report the result of a hold that was not for a request: its chunks were used."""
        if self._ended is not None:
            self.used(self._deadline)
            self._ended(self._origins, self._reasons)

    def _arrived(self) -> int:
        """Return the number of chunks before the first one whose read goes on."""
        return min(self._claims, default=len(self._wanted))

    def _promote(self, start: int, end: int, deadline: Deadline) -> None:
        keys = [spec.key for spec in self._wanted[start:end]]
        leases = [lease for lease in self._leases[start:end] if lease is not None]
        after = self._wanted[start - 1].key if start else self._terms.after
        batch = Batch(keys, leases, after)
        self._stack.promote(batch, self._origins[start:end], deadline)

    def _elsewhere(self, number: int, claim: PendingRead) -> PendingRead | None:
        """Begin to read the chunk from a tier that was not tried yet, if one may hold it.

        A tier that has no room for the read now becomes the origin of the missing chunk: a request
        may come again, and wait for it there.
        """
        stack, tried = self._stack, self._tried[number]
        key, now = claim.spec.key, Deadline(self._deadline.clock, 0.0)
        if claim.why in (Reason.TIMED_OUT, Reason.QUEUE_FULL):  # not recorded elsewhere
            stack.runtime.note([key], claim.tier, Reason.READ_FAILED, claim.why or "")
        if self._deadline.expired:
            if self._terms.ahead:  # the request for it may have time to look elsewhere
                claim.why = Reason.TIMED_OUT
            return None
        for tier in stack.tiers:
            link, rate = tier.link, stack.runtime.computing.rate
            slow = link.slower_than(rate) or link.slower_than(self._terms.rate)
            if tier.name in tried or not tier.rules.reads or tier.off or slow:
                continue
            tried.add(tier.name)
            # A remote store is read without a lookup: absence is an answer, too.
            if tier.calls.faults.barred([key]) or not (tier.remote or tier.contains([key], now)[0]):
                continue
            begun = stack.fetcher.begin(
                tier,
                [claim.spec],
                self._owner,
                self._deadline,
                keeps=not self._terms.passing,
                encoded=self._encoded,
            )
            if begun:
                return begun[0]
            claim.why = Reason.REFUSED
            if self._terms.passing:
                self._origins[number] = tier.name
        return None
