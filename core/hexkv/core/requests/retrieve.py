"""Retrieves: load the longest prefix that arrives whole into the device."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.requests.decoding import Decodable, load
from hexkv.core.requests.past_host import PastHost
from hexkv.core.requests.prefix import match_prefix
from hexkv.core.steps import Laps
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.matching import why_absent
from hexkv.core.tiers.read.pending_reads import PendingRead
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    Bounds,
    ChunkKey,
    Deadline,
    DeviceKV,
    Lease,
    Reason,
    release_all,
)


@dataclass(slots=True)
class Arrived:
    """The chunks that a retrieve has loaded so far, and those that it missed."""

    chunks: int = 0
    size: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens by tier."""

    by_tier: dict[str, int] = field(default_factory=dict)
    """Chunks by tier."""

    asked: int = 0
    """Chunks requested."""

    asked_tokens: int = 0
    """Tokens in them."""

    end_token: int = 0
    """The end of the last chunk that arrived."""

    misses: dict[Reason, int] = field(default_factory=dict)
    """Chunks that did not arrive, by reason."""

    missed_tokens: dict[Reason, int] = field(default_factory=dict)
    """Tokens in them, by reason."""

    def add(self, part: Prompt, tiers: Sequence[str]) -> None:
        """Count the chunks of *part* as arrived, each from one of *tiers*."""
        self.chunks += len(part.keys)
        self.end_token = part.ends[-1] if part.keys else self.end_token
        at = 0
        for tier, run in groupby(tiers):
            count = len(list(run))
            tokens = sum(part.ends[at : at + count]) - sum(part.starts[at : at + count])
            self.size += part.layout.chunk_bytes(tokens)
            self.tokens[tier] = self.tokens.get(tier, 0) + tokens
            self.by_tier[tier] = self.by_tier.get(tier, 0) + count
            at += count

    def end(self, asked: Bounds, why: Reason | None, *, short: bool = False) -> None:
        """End the load of the chunks *asked*, of which the next is missing because of *why*.

        *short* adds one chunk: a tail in place of one of them. Its tokens are part of that one's.
        """
        ends = asked.ends
        if not ends:
            return
        self.asked = len(ends) + short
        self.asked_tokens = ends[-1] - asked.starts[0]
        lost = self.asked - self.chunks
        if why is None or not lost:
            return  # everything has come
        here = self.end_token if self.chunks else asked.starts[0]
        next_end = ends[bisect_right(ends, here, hi=len(ends) - 1)]
        self._miss(why, 1, next_end - here)
        if lost > 1:
            rest = why if why.gone else Reason.BEHIND_A_MISS
            self._miss(rest, lost - 1, ends[-1] - next_end)

    def _miss(self, why: Reason, chunks: int, tokens: int) -> None:
        self.misses[why] = self.misses.get(why, 0) + chunks
        self.missed_tokens[why] = self.missed_tokens.get(why, 0) + tokens


class Arriving:
    """Chunks of one prompt being read, in order.

    Reads ahead as many as there is room for; waits for room only while it holds none, so that
    two requests never wait for each other.
    """

    def __init__(  # noqa: PLR0913
        self,
        stack: TierStack,
        prompt: Prompt,
        found: Sequence[Tier],
        owner: str,
        deadline: Deadline,
        pace: Pipelining,
        ready: dict[ChunkKey, PendingRead] | None = None,
        encoded: Collection[str] = (),
        past_host: Collection[int] = (),
    ) -> None:
        self._encoded = encoded
        self._past_host = past_host
        self._stack = stack
        self._prompt = prompt
        self._found = found
        self._owner = owner
        self._deadline = deadline
        self._pace = pace
        self._ready = ready or {}
        self._claims: deque[PendingRead] = deque()
        self._next = 0
        self._sooner: Deadline | None = None
        """The time from which computing was faster than a further wait for room."""

    def read_ahead(self, *, patient: bool) -> None:
        """Begin reads until enough are under way, or there is no room now.

        Stops at the next chunk in memory, which needs no read.
        """
        end = min(len(self._found), self._next + self._pace.ahead - len(self._claims))
        while self._next < end:
            key = self._prompt.keys[self._next]
            if key in self._ready:
                self._claims.append(self._ready.pop(key))
                self._next += 1
                continue
            stop = self._run(end, lends=False)
            if stop == self._next:
                break
            begun = self._stack.begin(
                self._prompt.specs(self._next, stop),
                self._found[self._next : stop],
                self._owner,
                self._deadline,
                wait=self._patience() if patient and not self._claims else None,
                encoded=self._encoded,
            )
            self._claims.extend(begun)
            self._next += len(begun)
            if self._next < stop:
                break

    def take(self) -> tuple[list[Lease], list[str], Reason | None]:
        """Return the next chunks that arrived, their tiers, and why the one after them is missing.

        The reason is ``None`` if that one may still come; never if no chunk is returned.
        """
        leases: list[Lease] = []
        tiers: list[str] = []
        self.read_ahead(patient=True)
        if not self._claims:
            name = self._found[self._next].name
            leases = self._lent(self._pace.run)
            if leases:
                return leases, [name] * len(leases), None
        first = self._next - len(self._claims)
        while self._claims and len(leases) < self._pace.step:
            claim = self._claims.popleft()
            number = first + len(leases)
            lease = claim.settle(self._owner, self._deadline, self._encoded)
            if lease is None:
                lease = self._stack.stand_in(claim, self._owner, self._deadline)
            if lease is None and claim.crowded:
                if leases:  # return those first, so that nothing is held during the wait
                    self._claims.appendleft(claim)
                    return leases, tiers, None
                self._forget_ahead(number + 1)
                wait = self._patience()
                lease = self._stack.stand_in(claim, self._owner, self._deadline, wait)
            if lease is None:
                return leases, tiers, self._why(claim.why)
            leases.append(lease)
            tiers.append(claim.tier)
        return leases, tiers, None if leases else self._why(Reason.REFUSED)

    def _run(self, end: int, *, lends: bool) -> int:
        """Return the end of the run of chunks to read, or to lease from one tier in memory."""
        stop = self._next
        rest = self._found[stop:end]
        if rest and rest.count(rest[0]) == len(rest) and not self._ready and not self._past_host:
            return end if rest[0].lends is lends else stop  # usually all are on one tier
        while stop < end:
            tier = self._found[stop]
            if tier.lends is not lends or (lends and tier is not self._found[self._next]):
                break
            if self._ready and self._prompt.keys[stop] in self._ready:
                break
            if stop in self._past_host:
                break
            stop += 1
        return stop

    def skip(self, count: int) -> None:
        """Skip the next *count* chunks, which came another way; their reads must not have begun."""
        self._next += count

    def _lent(self, count: int) -> list[Lease]:
        """Return leases on the next chunks that a tier in memory has; the rest become claims."""
        start = self._next
        stop = self._run(min(len(self._found), start + count), lends=True)
        if stop == start:
            return []
        tier, specs = self._found[start], self._prompt.specs(start, stop)
        lent, why = self._stack.fetcher.lend(tier, specs, self._owner, self._encoded)
        self._next = stop
        here = min(why, default=len(lent))
        for i in range(here, len(lent)):
            self._claims.append(PendingRead(specs[i], tier.name, lent[i], why=why.get(i)))
        return [lease for lease in lent[:here] if lease is not None]

    def _patience(self) -> Deadline:
        """Return until when to wait for room for the next chunk."""
        number = min(self._next, len(self._found) - 1)
        wait = worth_waiting(self._stack, self._prompt, self._found, number, self._deadline)
        self._sooner = wait if wait is not self._deadline else None
        return wait

    def _why(self, why: Reason | None) -> Reason | None:
        """Return why a chunk is missing: ``SLOWER`` if computing beats a further wait for room."""
        crowded = why in (Reason.QUEUE_FULL, Reason.REFUSED)
        return (
            Reason.SLOWER if crowded and self._sooner is not None and self._sooner.expired else why
        )

    def _forget_ahead(self, number: int) -> None:
        """Drop all reads ahead; chunk *number* is the next to read."""
        for claim in self._claims:
            claim.drop()
        self._claims.clear()
        self._next = number

    def drop(self) -> None:
        """Drop all reads."""
        for claim in (*self._claims, *self._ready.values()):
            claim.drop()
        self._claims.clear()
        self._ready.clear()


def worth_waiting(
    stack: TierStack, prompt: Prompt, found: Sequence[Tier], number: int, deadline: Deadline
) -> Deadline:
    """Return until when to wait for room to read chunks from *number* on.

    If the speeds of their tier and of the model are known: at most the time that loading saves
    compared with computing, so that a useless wait costs at most as much again.
    """
    computes = stack.runtime.compute_rate
    brings = None if computes is None else found[number].link.tokens_rate
    if computes is None or brings is None:
        return deadline
    tokens = prompt.ends[len(found) - 1] - prompt.starts[number]
    spare = max(0.0, tokens / computes - tokens / brings)
    return min(deadline, Deadline.after(deadline.clock, spare), key=attrgetter("at"))


def load_prefix(  # noqa: PLR0913
    stack: TierStack,
    copier: Copier,
    prompt: Prompt,
    device: DeviceKV,
    *,
    pace: Pipelining,
    owner: str,
    deadline: Deadline,
    laps: Laps,
    ready: dict[ChunkKey, PendingRead] | None = None,
) -> Arrived:
    """Load chunks of *prompt* in order until one does not arrive, reading ahead of the copy.

    Blocks are held for a few chunks only, so a prompt may be much longer than the pool.
    *ready* has the reads of a prefetch; unused ones are dropped.

    Raises:
        InvalidRequest: the device raised it.
    """
    prefix = match_prefix(stack, prompt, deadline)
    found = prefix.tiers
    prompt = prefix.whole.part(0, len(found))
    # All at once, so that the first chunks loaded do not evict the last ones.
    keys = prompt.keys
    stack.touch(keys)
    if found and found.count(found[0]) < len(found):
        # With little room, chunks promoted on the way would evict them nevertheless.
        stack.pins.pin(owner, keys)
    laps.mark(("match", "", laps.now()))
    arrived = Arrived()
    why: Reason | None = None
    encoded: Collection[str] = ()
    if hasattr(device, "decodes"):  # otherwise there is nothing to query
        encoded = Decodable(stack.runtime, device)
    past_host = None
    if any(tier.calls.past_host is not None for tier in {*found}):
        past_host = PastHost(stack.runtime, copier, device, prompt, found, owner, deadline)
        past_host.numbers.difference_update(
            number for number, key in enumerate(keys) if ready and key in ready
        )
    past = past_host.numbers if past_host is not None else ()
    arriving = Arriving(stack, prompt, found, owner, deadline, pace, ready, encoded, past)
    try:
        while arrived.chunks < len(found):
            first = found[arrived.chunks].name
            number = arrived.chunks
            if past_host and number in past and (count := past_host.load(number, pace.step)):
                laps.mark(("read", first, laps.now()))
                arriving.skip(count)
                arrived.add(prompt.part(number, number + count), [first] * count)
                continue
            leases, tiers, why = arriving.take()
            laps.mark(("read", tiers[0] if tiers else first, laps.now()))
            part = prompt.part(number, number + len(leases))
            try:
                if not leases:
                    break
                arriving.read_ahead(patient=False)
                if not load(stack.runtime, copier, device, part, leases, deadline):
                    why = Reason.DEVICE
                    break
                laps.mark(("copy", "", laps.now()))
                if tiers.count(stack.tiers[0].name) < len(tiers):
                    stack.promote(Batch(part.keys, leases, part.after), tiers, deadline)
                laps.mark(("promote", "", laps.now()))
            finally:
                release_all(leases)
            arrived.add(part, tiers)
            if why is not None:
                break
    finally:
        arriving.drop()
    asked = prefix.asked
    if arrived.chunks == len(found) and (whole := len(found) - prefix.short) < len(asked.keys):
        why = why_absent(stack.tiers, stack.runtime, asked.keys[whole])
    arrived.end(Bounds(asked.starts, asked.ends), why, short=prefix.short)
    return arrived
