"""New rules and limits of one tier, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hexkv.core.tiers.rules import TierRules, Writes
from hexkv.core.tiers.tier import Tier
from hexkv.ports import InvalidRequest


def changed_rules(
    rules: TierRules, *, reads: bool | None, writes: str | None, promotes: bool | None
) -> TierRules:
    """Return *rules* with the arguments that are not ``None`` in place of theirs.

    Raises:
        InvalidRequest: *writes* is not a member of :class:`Writes`.
    """
    try:
        kept = rules.writes if writes is None else Writes(writes)
    except ValueError as error:
        known = ", ".join(Writes)
        raise InvalidRequest(f"no tier writes {writes!r}; there are {known}") from error
    return replace(
        rules,
        reads=rules.reads if reads is None else reads,
        writes=kept,
        promotes=rules.promotes if promotes is None else promotes,
    )


def check_limit(tier: Tier, budget: int, quotas: Mapping[str, int]) -> None:
    """Refuse a budget of *tier*, and quotas of some tenants, that it cannot have.

    Raises:
        InvalidRequest
    """
    shares = tier.index.quotas()
    if not tier.index.decides:
        raise InvalidRequest(
            f"tier {tier.name!r}: its store cannot list its chunks, so no budget can be kept"
        )
    if lacking := [name for name in quotas if name not in shares]:
        raise InvalidRequest(f"tier {tier.name!r}: tenant {lacking[0]!r} has no quota there")
    if (total := sum({**shares, **quotas}.values())) > budget:
        raise InvalidRequest(
            f"tier {tier.name!r}: the quotas are {total} bytes together, the budget {budget}"
        )
