"""The state of a cache and its tiers."""

from __future__ import annotations

from collections import Counter

from hexkv.core.tiers.cache import TierStack
from hexkv.ports import Health, TierHealth


def health_of(stack: TierStack) -> Health:
    """Return the state of *stack*, without prefetches."""
    pins: Counter[str] = Counter()
    tiers = []
    for tier in stack.tiers:
        index = tier.index
        reading, writing = [lane.breaker.state for lane in tier.lanes] or ["closed", "closed"]
        pins.update(index.pinned)
        tiers.append(
            TierHealth(
                name=tier.name,
                chunks=len(index) if index.decides else None,
                used_bytes=index.used if index.decides else None,
                budget_bytes=index.budget,
                failures=tier.calls.failures,
                reading=reading,
                writing=writing,
                queued_bytes=sum(lane.pending_bytes for lane in tier.lanes),
                indexing=tier.indexing,
                tenants=index.used_by(),
                last_error=tier.calls.last_error.words,
                last_error_time=tier.calls.last_error.when,
                full=tier.calls.full,
                tokens_per_second=tier.link.tokens_rate,
            )
        )
    return Health(
        state="open",
        frozen=False,
        tiers=tuple(tiers),
        pool_bytes=stack.pool.capacity,
        pool_held_bytes=stack.pool.held_bytes,
        leases=stack.pool.ledger(),
        pins=dict(pins),
        pin_seconds=stack.pins.seconds(),
        prefetches=0,
        directory=stack.runtime.directory(),
    )
