"""Administration of a cache that is being built, which can open further tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.keys.hashing import hashed_salt
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.index.tenants import Tenant
from hexkv.core.tiers.tier import TierPlan
from hexkv.operate.adjusting import Adjusting
from hexkv.operate.keyed_admin import KeyedAdmin
from hexkv.plugins.composition.administering import Administer
from hexkv.plugins.composition.tiers import TierOpener


def administer(
    opener: TierOpener | None,
    stack: TierStack,
    deadlines: Deadlines,
    tenants: Sequence[Tenant],
    calls: Calls,
) -> KeyedAdmin:
    """See :class:`~hexkv.plugins.composition.administering.Administer`.

    Without an *opener* no tiers are attached, and no settings change.
    """
    admin = KeyedAdmin(
        stack,
        calls,
        look=deadlines.lookup,
        work=deadlines.store,
        pin=deadlines.pin,
        tenants={hashed_salt(tenant.salt): tenant.name for tenant in tenants},
    )
    if opener is not None:
        admin.open_tier = partial(open_tier, opener, stack)
        admin.adjusting = Adjusting(admin, calls, stack, opener)
    return admin


def open_tier(opener: TierOpener, stack: TierStack, section: Mapping[str, object]) -> TierPlan:
    """Open a tier that is to be attached to *stack*, from its *section* of a configuration."""
    names = [tier.name for tier in stack.tiers]
    return opener.added(section, names, stack.runtime.serdes)


if TYPE_CHECKING:

    def _opens() -> Administer:
        return administer
