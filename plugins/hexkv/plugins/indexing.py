"""The core's index, for adapters that serve others and so have a budget of their own to keep."""

from __future__ import annotations

from hexkv.core.tiers.index import TierIndex
from hexkv.core.tiers.reservation import Reservation
from hexkv.plugins.registry import Registry
from hexkv.plugins.spec import OpenContext

__all__ = ["Reservation", "TierIndex", "tier_index"]


def tier_index(
    registry: Registry, policy: str, budget: int | None, context: OpenContext
) -> TierIndex:
    """An index of *budget* bytes that evicts by the policy that a configuration calls *policy*.

    Raises:
        ConfigError: no such policy is installed.
    """
    return TierIndex(registry.open("policy", policy, {}, context), budget)
