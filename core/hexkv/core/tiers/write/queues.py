"""Divide the pool among the queues of all tiers."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.core.tiers.tier import Tier


def share_out(tiers: Sequence[Tier], capacity: int, least: int) -> None:
    """Bound the queues of *tiers*, so that together they leave blocks for calls.

    Hanging reads and pending writes must not keep loads from their blocks. With n tiers that do I/O
    the pool has n + 1 parts: the queues of a tier, one for reading and one for writing, take one
    part, and the last is for calls.

    Args:
        tiers: all tiers.
        capacity: bytes of the pool.
        least: bytes of a block: a queue has room for one.
    """
    lanes = sum(len(tier.lanes) for tier in tiers)
    most = max(capacity // (lanes + 2), least)
    for tier in tiers:
        for lane in tier.lanes:
            lane.queue_bytes = min(tier.rules.lane.queue_bytes, most)
