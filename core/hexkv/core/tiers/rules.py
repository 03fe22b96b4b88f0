"""The rules of a tier."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hexkv.core.io.rules import LaneRules


class Writes(StrEnum):
    """The chunks that are stored on a tier."""

    ALL = "all"
    """Every new chunk."""

    EVICTED = "evicted"
    """Chunks that the tier before it evicts."""

    NONE = "none"


@dataclass(frozen=True, slots=True)
class TierRules:
    """The rules of a tier."""

    writes: Writes = Writes.ALL
    reads: bool = True
    promotes: bool = True
    """True if chunks found on slower tiers are copied here."""

    retries: int = 1
    """How often a failed call is repeated, within its deadline."""

    min_reuse: float = 0.0
    """The chance of reuse below which an evicted chunk is not written here."""

    shortest: int = 1
    """Tokens of the shortest chunk that is written here. Tails of prompts are short, and each would
    be an object of its own."""

    serdes: tuple[str, ...] = ("raw",)
    """Forms that may encode new chunks on their way to the tier, the most faithful first."""

    lane: LaneRules = field(default_factory=LaneRules)
