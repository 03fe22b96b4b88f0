"""What may be done with a tier."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from hexkv.core.io.rules import LaneRules
from hexkv.ports import InvalidRequest


class Writes(StrEnum):
    """Which chunks are stored on a tier."""

    ALL = "all"
    """Every new one."""

    EVICTED = "evicted"
    """What the tier before it evicts."""

    NONE = "none"


@dataclass(frozen=True, slots=True)
class TierRules:
    """What may be done with a tier."""

    writes: Writes = Writes.ALL
    reads: bool = True
    promotes: bool = True
    """Chunks found further down are copied here."""

    retries: int = 1
    """How often a call that failed is made again, within its deadline."""

    min_reuse: float = 0.0
    """The chance to be asked for again below which an evicted chunk is not written here."""

    shortest: int = 1
    """Tokens of the shortest chunk that is written here. Tails of prompts have few, and each
    would be an object of its own."""

    serdes: tuple[str, ...] = ("raw",)
    """What may encode new chunks on their way to the tier, the most faithful first."""

    lane: LaneRules = field(default_factory=LaneRules)


def changed_rules(
    rules: TierRules, *, reads: bool | None, writes: str | None, promotes: bool | None
) -> TierRules:
    """*rules* with what is not ``None`` in their place.

    Raises:
        InvalidRequest: *writes* is no such rule.
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
