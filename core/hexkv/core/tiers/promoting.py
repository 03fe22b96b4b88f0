"""Promotion: chunks that a slower tier served are copied to the faster ones."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.core.tiers.matching import runs
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.writing import Batch, Writer
from hexkv.ports import Deadline


def promote(
    writer: Writer,
    tiers: Sequence[Tier],
    batch: Batch,
    origin: Sequence[str],
    deadline: Deadline,
    background: Deadline,
) -> None:
    """Copy chunks to the tiers that are faster than the one they came from, and promote.

    Args:
        writer: writes to tiers.
        tiers: from fastest to slowest.
        batch: the chunks, in leased blocks.
        origin: by chunk the name of the tier that served it.
        deadline: for tiers in memory, which take the blocks at once.
        background: for tiers that do I/O, for which nobody waits.
    """
    order = {tier.name: ordinal for ordinal, tier in enumerate(tiers)}
    places = [order.get(name, 0) for name in origin]
    for ordinal, tier in enumerate(tiers):
        if not tier.rules.promotes or ordinal >= max(places, default=0):
            continue
        below = [i for i, place in enumerate(places) if place > ordinal]
        for run in runs(below):
            part = batch.part(run[0], run[-1] + 1)
            writer.put(tier, part, deadline if tier.lends else background)
