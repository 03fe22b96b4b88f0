"""Clearing: chunks leave tiers because somebody says so, and what stayed is said, too."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from hexkv.core.io.scheduler import Priority, Refused, Ticket
from hexkv.core.tiers.runtime import Runtime
from hexkv.core.tiers.tier import Gone, Tier
from hexkv.ports import Change, ChunkKey, Cleared, Deadline, Reason, namespace_of


def settle_writes(runtime: Runtime, tiers: Sequence[Tier], deadline: Deadline) -> dict[str, str]:
    """Wait until what was to be written is there to be deleted, for half of the time at most.

    Returns:
        by tier why something may be written after this; nothing for those that are done.
    """
    half = Deadline.after(runtime.clock, deadline.remaining() / 2)
    return {
        tier.name: "what is being written may stay"
        for tier in tiers
        if tier.writing is not None and not tier.writing.drain(half)
    }


def part_with(
    runtime: Runtime,
    tiers: Sequence[Tier],
    work: Callable[[Tier], Gone],
    deadline: Deadline,
    why: tuple[Reason, str] = (Reason.CLEARED, ""),
) -> Cleared:
    """Have *work* delete chunks from each tier, in its lane, from all of them at once."""
    parts = [(tier, _begin(tier, work, deadline)) for tier in tiers]
    gone: set[ChunkKey] = set()
    counts: Tally[str] = Tally()
    left: dict[str, str] = {}
    for tier, part in parts:
        got = part.wait(deadline)
        gone.update(got.keys)
        counts[tier.name] = len(got.keys)
        if got.why:
            left[tier.name] = got.why
        runtime.note(got.keys, tier.name, *why)
        runtime.tell(Change.REMOVED, tier.name, got.keys)
    return Cleared(len(gone), dict(counts), left)


def clear(tier: Tier, prefixes: Collection[bytes] | None, deadline: Deadline) -> Gone:
    """Delete whatever namespaces left on *tier* whose keys begin so; ``None`` for everything."""

    def wanted(keys: Iterable[ChunkKey]) -> list[ChunkKey]:
        return [key for key in keys if prefixes is None or namespace_of(key) in prefixes]

    known = [] if tier.index is None else wanted(tier.index.keys())
    if tier.index is not None and not tier.indexing and not tier.shared:
        return tier.forget(known, deadline)
    if tier.scanning is None:
        return Gone((), "its store cannot list what it holds")
    entries = tier.scan()
    if entries is None:
        return tier.forget(known, deadline)._replace(why="its store did not list all it holds")
    found = wanted(entry.key for entry in entries)
    return tier.forget(list(dict.fromkeys([*known, *found])), deadline)


@dataclass(frozen=True, slots=True)
class _Part:
    """What goes from one tier, now or later."""

    ticket: Ticket[Gone] | None
    gone: Gone

    def wait(self, deadline: Deadline) -> Gone:
        if self.ticket is not None and self.ticket.wait(deadline):
            return self.ticket.result or self.gone
        return self.gone


def _begin(tier: Tier, work: Callable[[Tier], Gone], deadline: Deadline) -> _Part:
    late = Gone((), Reason.TIMED_OUT)
    lane = tier.writing
    if lane is None:
        return _Part(None, work(tier))

    def task(go: bool) -> tuple[Gone, bool | None]:
        return (work(tier) if go else late), None

    try:
        return _Part(lane.submit(Priority.DELETE, 0, task, deadline), late)
    except Refused as refusal:
        return _Part(None, Gone((), refusal.reason))
