"""Administration of a cache that is being built: what its verbs need."""

from __future__ import annotations

from collections.abc import Mapping

from hexkv.core.engine.keyed_admin import KeyedAdmin
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.config import Loaded
from hexkv.plugins.registry import Registry
from hexkv.plugins.tiers import TierOpener
from hexkv.ports import Clock


def let_attach(
    admin: KeyedAdmin,
    stack: TierStack,
    loaded: Loaded,
    registry: Registry,
    clock: Clock,
    block: int | None,
) -> None:
    """Have *admin* open the tiers that are to be attached to *stack*.

    Args:
        admin: of the cache.
        stack: its tiers.
        loaded: its configuration.
        registry: what is installed.
        clock: of the cache.
        block: bytes of the largest frame; ``None`` where frames are of any size.
    """
    opener = TierOpener(loaded, registry, clock, stack.pool, block)

    def open_tier(section: Mapping[str, object]) -> TierPlan:
        names = [tier.name for tier in stack.tiers]
        return opener.added(section, names, stack.runtime.serdes)

    admin.open_tier = open_tier
