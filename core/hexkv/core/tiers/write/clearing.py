"""Clearing: delete chunks from tiers on request, and report those that stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.io.ticket import Ticket
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import Change, ChunkKey, Cleared, Deadline, Reason, namespace_of

_UNDELETED = "the store failed to delete"
_REPLACED = "something is being replaced"
_LISTED = "what its store holds is being counted"


class Gone(NamedTuple):
    """The result of a deletion on one tier."""

    keys: Sequence[ChunkKey]
    """The chunks that were on the tier, as far as is known."""

    why: str
    """The reason why chunks may be left; empty if none are."""

    others: int = 0
    """The number of further chunks deleted, whose keys only the store knows."""


def settle_writes(
    runtime: TierRuntime, tiers: Sequence[Tier], deadline: Deadline
) -> dict[str, str]:
    """Wait for pending writes, for at most half of the time, so that they can be deleted.

    Returns:
        by tier, why chunks may still be written after this; empty for tiers that are done.
    """
    half = Deadline.after(runtime.clock, deadline.remaining() / 2)
    return {tier.name: "chunks being written may stay" for tier in tiers if not tier.flush(half)}


def part_with(
    runtime: TierRuntime,
    tiers: Sequence[Tier],
    work: Callable[[Tier], Gone],
    deadline: Deadline,
    why: tuple[Reason, str] = (Reason.CLEARED, ""),
) -> Cleared:
    """Call *work* for each tier, in its lane and in all tiers at once, to delete chunks."""
    parts = [(tier, _begin(tier, work, deadline)) for tier in tiers]
    gone: set[ChunkKey] = set()
    counts: Counter[str] = Counter()
    left: dict[str, str] = {}
    for tier, part in parts:
        got = part.wait(deadline)
        gone.update(got.keys)
        counts[tier.name] = len(got.keys) + got.others
        if got.why:
            left[tier.name] = got.why
        runtime.note(got.keys, tier.name, *why)
        tier.calls.cleared()
        runtime.tell(Change.REMOVED, tier.name, got.keys)
    # A chunk whose key only a store knows may be one that another tier has counted.
    return Cleared(max(len(gone), *counts.values(), 0), dict(counts), left)


def forget(tier: Tier, keys: Sequence[ChunkKey], deadline: Deadline) -> Gone:
    """Delete chunks, also pinned ones. Return those that were on the tier, where that is known."""
    free = tier.not_replaced(keys)
    gone = tier.let_go(free)
    # Other processes may have stored chunks that the index has not learnt of.
    every = not tier.index.decides or tier.indexing or tier.shared
    # Chunks that leave already may still be on the store: their deletion was deferred, or failed.
    well = tier.delete(free if every else tier.index.leaving(free), deadline)
    return Gone(gone, _left(tier, keys, free, deadline) if well else _UNDELETED)


def clear(tier: Tier, prefixes: Collection[bytes] | None, deadline: Deadline) -> Gone:
    """Delete the chunks of *tier* whose keys begin with one of *prefixes*; ``None``: all chunks."""

    def wanted(keys: Iterable[ChunkKey]) -> list[ChunkKey]:
        return [key for key in keys if prefixes is None or namespace_of(key) in prefixes]

    known = wanted(dict.fromkeys([*tier.index.keys(), *tier.index.leaving()]))
    if tier.index.decides and not tier.indexing and not tier.shared:
        return forget(tier, known, deadline)
    if tier.calls.clearing is not None:
        return _clear_prefixes(tier, prefixes, known, deadline)
    if tier.calls.scanning is None:
        return Gone((), "its store cannot list what it holds, or clear a namespace")
    entries = tier.calls.scan()
    if entries is None:
        return forget(tier, known, deadline)._replace(why="its store did not list all it holds")
    found = wanted(entry.key for entry in entries)
    return forget(tier, list(dict.fromkeys([*known, *found])), deadline)


def _clear_prefixes(
    tier: Tier, prefixes: Collection[bytes] | None, known: Sequence[ChunkKey], deadline: Deadline
) -> Gone:
    """Have the store delete by prefix; *known* are the keys among them in the index."""
    free = tier.not_replaced(known)
    gone = tier.let_go(free)
    going = tier.index.leaving(free)
    count = 0
    wanted = [b""] if prefixes is None else list(prefixes)
    with tier.deleting.now(going, wanted) as mine:
        for prefix in wanted:
            cleared = tier.calls.clear_prefix(prefix, deadline)
            if cleared is None:
                tier.put_off(mine)
                return Gone(gone, _UNDELETED)
            count += cleared
        tier.deleting.done(mine)
    return Gone(gone, _left(tier, known, free, deadline), max(0, count - len(going)))


def _left(
    tier: Tier, keys: Sequence[ChunkKey], free: Sequence[ChunkKey], deadline: Deadline
) -> str:
    """Return why some of *keys* may be left once *free* are deleted; empty if none is."""
    if tier.index.leaving(free):  # another worker is deleting them, or has failed to
        half = Deadline.after(deadline.clock, deadline.remaining() / 2)
        if not tier.deleting.settled(free, half) or tier.index.leaving(free):
            return _UNDELETED
    busy = [] if len(free) == len(keys) else tier.index.contains(keys)
    return _REPLACED if any(busy) else ""


@dataclass(frozen=True, slots=True)
class _Part:
    """The deletion from one tier, done or pending."""

    ticket: Ticket[Gone] | None
    gone: Gone

    def wait(self, deadline: Deadline) -> Gone:
        if self.ticket is not None and self.ticket.wait(deadline):
            return self.ticket.result or self.gone
        return self.gone


def _begin(tier: Tier, work: Callable[[Tier], Gone], deadline: Deadline) -> _Part:
    late = Gone((), Reason.TIMED_OUT)

    def task(go: bool) -> tuple[Gone, bool | None]:
        if not go:
            return late, None
        with tier.deleting.clearing(deadline) as free:
            return (work(tier) if free else Gone((), _LISTED)), None

    try:
        return _Part(tier.submit(Priority.DELETE, 0, task, deadline), late)
    except Refused as refusal:
        return _Part(None, Gone((), refusal.reason))
