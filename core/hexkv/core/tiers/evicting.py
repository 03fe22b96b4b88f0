"""Eviction in the background: chunks that left an index are deleted in the tier's own lane.

A store may take its time over a delete, or never answer, so only a worker of the tier's lane for
writing calls it. Chunks that are still to be deleted count against the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.tiers.remembering import remember_evicted
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline


def background_deadline(runtime: TierRuntime) -> Deadline:
    """Return a deadline for work that no caller waits for."""
    return Deadline.after(runtime.clock, 60.0)


def evict_soon(runtime: TierRuntime, tier: Tier, victims: Sequence[ChunkKey]) -> None:
    """Delete evicted chunks in the background. Never blocks.

    If the lane takes no work at present, the next write deletes them first.
    """
    if victims:
        tier.put_off(victims)
        _sweep_soon(runtime, tier)
        remember_evicted(runtime, tier, victims)


def _sweep_soon(runtime: TierRuntime, tier: Tier) -> None:
    # One task after the other: however many victims there are, they take one worker, and
    # the lane is seen to make progress.
    def work(go: bool) -> tuple[None, bool | None]:
        well = tier.sweep(background_deadline(runtime)) if go else None
        if well:
            _sweep_soon(runtime, tier)
        return None, well

    with suppress(Refused):
        tier.submit(Priority.DELETE, 0, work)
