"""The chunks that tiers in memory keep, listed part by part."""

from __future__ import annotations

from heapq import nsmallest

from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.runtime import RAW
from hexkv.ports import ChunkKey, ChunkSpec

_LISTING = "list"


def in_memory(stack: TierStack, after: ChunkKey | None, most: int) -> list[ChunkSpec]:
    """Return some of the chunks that tiers in memory keep behind *after*, in key order.

    At most *most*, with the spec of a hold: raw. Empty only if there are none left.
    """
    tiers = [tier for tier in stack.tiers if tier.lends]
    keys = {key for tier in tiers for key in tier.index.keys()}  # noqa: SIM118 - no mapping
    behind = [key for key in keys if after is None or key > after]
    while some := nsmallest(most, behind):
        found: dict[ChunkKey, ChunkSpec] = {}
        for tier in tiers:
            for key, lease in zip(some, tier.calls.get_lease(some, _LISTING), strict=True):
                if lease is None:
                    continue
                with lease:
                    if lease.spec is not None:
                        found[key] = lease.spec._replace(serde=RAW)
        if found:
            return [found[key] for key in some if key in found]
        behind = [key for key in behind if key > some[-1]]  # all of these were evicted by now
    return []
