"""Counting: the bytes that a chunk takes on a tier, before and after it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline, Lease

Evict = Callable[[Tier, Sequence[ChunkKey], Deadline], object]


def expected(tier: Tier, leases: Sequence[Lease], frames: Sequence[memoryview]) -> list[int]:
    """Return bytes to reserve: of the pool where blocks are kept, else of the chunks' *frames*."""
    if tier.lends and not tier.own_memory:
        return [lease.size for lease in leases]
    return list(map(len, frames))


def counted(tier: Tier, key: ChunkKey, lease: Lease) -> int:
    """Return the bytes that a chunk counts on a tier, or the expected bytes if it is not there."""
    size = tier.index.size(key)
    return expected(tier, [lease], [lease.frame])[0] if size is None else size


def recount(
    tier: Tier, keys: Sequence[ChunkKey], evict: Evict, deadline: Deadline
) -> list[ChunkKey]:
    """Count stored chunks by the memory that they take in a store with memory of its own.

    Only the store knows these sizes, and only after the write; so a batch may exceed the budget
    until this ends.

    Args:
        tier: the tier that keeps them.
        keys: the chunks.
        evict: deletes the victims of a chunk that takes more, before the next one is counted.
        deadline: for deleting.

    Returns:
        those of *keys* that did not stay, for lack of space.
    """
    if not tier.own_memory:
        return []
    for key, lease in zip(keys, tier.calls.get_lease(keys, f"count {tier.name}"), strict=True):
        if lease is None:
            continue
        with lease:
            size = lease.size
        victims = tier.index.resize(key, size)
        # None: there is no space for its size, so the chunk itself cannot stay.
        evict(tier, tier.index.discard([key]) if victims is None else victims, deadline)
    return [key for key, here in zip(keys, tier.index.contains(keys), strict=True) if not here]
