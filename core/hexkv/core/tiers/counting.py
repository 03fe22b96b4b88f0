"""Counting: how many bytes a chunk takes on a tier, before it is there and once it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline, Lease

Evict = Callable[[Tier, Sequence[ChunkKey], Deadline], object]


def expected(tier: Tier, leases: Sequence[Lease], frames: Sequence[memoryview]) -> list[int]:
    """Bytes to reserve for chunks: of the pool where blocks are kept, else of their *frames*."""
    if tier.lends and not tier.own_memory:
        return [lease.size for lease in leases]
    return list(map(len, frames))


def counted(tier: Tier, key: ChunkKey, lease: Lease) -> int:
    """Bytes that a chunk counts on a tier; where that is not known, what it is expected to."""
    size = tier.index.size(key)
    return expected(tier, [lease], [lease.frame])[0] if size is None else size


def recount(
    tier: Tier, keys: Sequence[ChunkKey], evict: Evict, deadline: Deadline
) -> list[ChunkKey]:
    """Count chunks that were kept as what they take of a store's own memory.

    Only the store knows that, and only now; so a batch may exceed the budget until this ends.

    Args:
        tier: where they are kept.
        keys: the chunks.
        evict: deletes victims of a chunk that takes more, before the next one is counted.
        deadline: for deleting.

    Returns:
        those of *keys* that did not stay, for want of room.
    """
    if not tier.own_memory:
        return []
    for key, lease in zip(keys, tier.calls.get_lease(keys, f"count {tier.name}"), strict=True):
        if lease is None:
            continue
        with lease:
            size = lease.size
        victims = tier.index.resize(key, size)
        # None: there is no room for what it takes, so it cannot stay itself.
        evict(tier, tier.index.discard([key]) if victims is None else victims, deadline)
    return [key for key, here in zip(keys, tier.index.contains(keys), strict=True) if not here]
