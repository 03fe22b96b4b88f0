"""Matching: find the tier that is expected to serve each chunk.

Indexes answer at once. A store with an incomplete index is queried by a worker of its own lane, so
that a slow one costs its deadline, and delays no other answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.io.ticket import Ticket
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline, Reason

T = TypeVar("T")

Found = Sequence["Tier | None"]
"""The first tier that holds each chunk."""


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


def find_tiers(
    tiers: Sequence[Tier], keys: Sequence[ChunkKey], deadline: Deadline, *, asks: bool = True
) -> Found:
    """Return the first tier that holds each chunk; *asks*: see :func:`contains_by_deadline`."""
    search: _Search | None = None
    for tier in tiers:
        if not tier.rules.reads:
            continue
        asked = keys if search is None else search.asked()
        have = contains_by_deadline(tier, asked, deadline, asks=asks) if asked else ()
        if True in have:
            if search is None:
                if False not in have:  # the usual case, and the longest
                    return [tier] * len(keys)
                search = _Search(keys)
            search.learn(tier, have)
    return [None] * len(keys) if search is None else search.found


def find_tiers_soon(
    tiers: Sequence[Tier],
    keys: Sequence[ChunkKey],
    deadline: Deadline,
    then: Callable[[Found], None],
) -> None:
    """Call *then* with the result of :func:`find_tiers`: at once if no store has to be queried.

    Otherwise the worker that queried the last store calls it; always, and once.
    """
    search = _Search(keys)

    def go_on(ordinal: int) -> None:
        for i in range(ordinal, len(tiers)):
            tier = tiers[i]
            if not search.unknown:
                break
            if not tier.rules.reads or tier.off:
                continue
            asked = search.asked()
            if not tier.remote or all(tier.known(asked)):
                search.learn(tier, tier.contains(asked, deadline))
                continue

            def learn(have: Sequence[bool], tier: Tier = tier, i: int = i) -> None:
                search.learn(tier, have)
                go_on(i + 1)

            if _peek(tier, search.asked(), deadline, learn) is not None:
                return
        then(search.found)

    go_on(0)


def run_of(found: Sequence[T | None]) -> list[T]:
    """Return the elements before the first ``None``."""
    run = found[: found.index(None)] if None in found else found
    return list(run)  # type: ignore[arg-type] # up to the first None


def runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split ascending numbers where they jump."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def serving(tiers: Sequence[Tier], compute_rate: float | None) -> Sequence[Tier]:
    """Return the tiers that one request is to be served from."""
    if compute_rate is None:
        return tiers
    return [tier for tier in tiers if tier.link.serves(compute_rate)]


def computed_again(tiers: Sequence[Tier], compute_rate: float) -> Sequence[Tier]:
    """Return the tiers that are slower than computing, and below one that takes used chunks.

    A chunk that only these hold is computed once more, so a faster tier is to have it.
    """
    slow = [tier for tier in tiers if tier.link.slower_than(compute_rate)]
    takes = [tier.rules.promotes and tier.rules.writes is Writes.ALL for tier in tiers]
    return slow if any(takes[: tiers.index(slow[0])] if slow else ()) else ()


def why_absent(tiers: Sequence[Tier], runtime: TierRuntime, key: ChunkKey) -> Reason:
    """Return why no tier that serves requests holds a chunk. Queries no store.

    For chunks that left a tier, the reason is the history's newest note: with more space, or more
    time, the chunk would have been a hit.
    """
    rate, off = runtime.computing.rate, False
    for tier in tiers:
        if not tier.rules.reads:
            continue
        slow = rate is not None and tier.link.slower_than(rate)
        if slow and (not tier.index.decides or all(tier.index.contains([key]))):
            return Reason.SLOWER
        # For a store with an incomplete index nothing is known unless it is queried.
        off = off or (tier.remote and tier.off)
    if off:
        return Reason.TIER_OFF
    if len(runtime.history):
        notes = [runtime.history.find(key, tier.name) for tier in tiers if tier.rules.reads]
        newest = max((note for note in notes if note), key=attrgetter("when"), default=None)
        if newest is not None and newest.cause.gone:
            return newest.cause
    lost = any(tier.calls.wrote(key) for tier in tiers if tier.rules.reads)
    return Reason.LOST if lost else Reason.ABSENT


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
