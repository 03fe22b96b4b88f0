"""Fill the index of a tier from the listing of its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hexkv.core.tiers.evicting import background_deadline
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import Change, ChunkKey, Deadline


def fill_index(
    runtime: TierRuntime,
    tier: Tier,
    evict: Callable[[Tier, Sequence[ChunkKey], Deadline], object],
) -> bool:
    """Fill a tier's index from its store, and *evict* what exceeds the budget.

    Return True if it is complete now. Until it is, writes are refused: a budget holds only if every
    chunk is counted.
    """
    with tier.deleting.followed() as deleted:
        entries = tier.calls.scan()
        if entries is None:
            return False
        with tier.deleting.taking_in(background_deadline(runtime)) as free:
            if not free:
                return False
            victims = tier.index.restore(entry for entry in entries if entry.key not in deleted)
            # And chunks deleted between that check and their adoption.
            late = tier.index.discard([entry.key for entry in entries if entry.key in deleted])
            tier.index.deleted(late)
    evict(tier, victims, background_deadline(runtime))
    tier.indexing = False
    runtime.tell(Change.STORED, tier.name, tier.index.keys())
    return True
