"""Why a request is served from a tier, or from none; runs of chunks that were found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Reason

T = TypeVar("T")

Found = Sequence["Tier | None"]
"""The first tier that holds each chunk."""

_REASONS = frozenset(map(str, Reason))


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


def computed_again(tiers: Sequence[Tier], compute_rate: float) -> Sequence[Tier]:
    """Return the tiers that are slower than computing, and below one that takes used chunks.

    A chunk that only these hold is computed once more, so a faster tier is to have it.
    """
    slow = [tier for tier in tiers if tier.link.slower_than(compute_rate)]
    takes = [tier.rules.promotes and tier.rules.writes is Writes.ALL for tier in tiers]
    return slow if any(takes[: tiers.index(slow[0])] if slow else ()) else ()


def why_absent(
    tiers: Sequence[Tier], runtime: TierRuntime, key: ChunkKey, rate: float | None = None
) -> Reason:
    """Return why no tier that serves requests holds a chunk. Queries no store.

    *rate* is that of a host in another process; see :class:`~hexkv.ports.HoldTerms`.

    For chunks that left a tier, the reason is the history's newest note: with more space, or more
    time, the chunk would have been a hit.
    """
    off = lost = False
    for tier in tiers:
        if not tier.rules.reads:
            continue
        slow = tier.link.slower_than(runtime.computing.rate) or tier.link.slower_than(rate)
        if slow and (not tier.index.decides or all(tier.index.contains([key]))):
            return Reason.SLOWER
        if not tier.lends:
            # For a store with an incomplete index nothing is known unless it is queried.
            off = off or (tier.off and (tier.remote or all(tier.index.contains([key]))))
        lost = lost or tier.calls.wrote(key)
    if off:
        return Reason.TIER_OFF
    if runtime.history.places:
        newest = runtime.history.find(key, *[tier.name for tier in tiers if tier.rules.reads])
        if newest is not None and newest.cause.gone:
            return newest.cause
    return Reason.LOST if lost else Reason.ABSENT


def why_dropped(tiers: Sequence[Tier], runtime: TierRuntime, key: ChunkKey) -> Reason:
    """Return why the last write of a chunk was dropped; ``DROPPED`` if that is forgotten."""
    newest = runtime.history.find(key, *[tier.name for tier in tiers])
    if newest is None:
        return Reason.DROPPED
    return Reason(newest.detail) if newest.detail in _REASONS else newest.cause
