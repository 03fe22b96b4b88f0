"""What the engine answers: one value per call, counted from outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from hexkv.ports.reasons import Reason
from hexkv.ports.steps import TraceStep


class Lookup(NamedTuple):
    """How much of a prompt the tiers can be expected to give back."""

    tokens: int
    """Tokens in the prompt."""

    hit_tokens: int
    """Length of the longest prefix whose every chunk some tier holds."""

    tiers: Mapping[str, int] = MappingProxyType({})
    """Tokens of that prefix by the tier that would serve them."""

    missing: Reason | None = None
    """Why the chunk behind it is not found; ``None`` if all chunks are, or nobody says."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What a retrieve really put into the device."""

    tokens: int
    """Tokens in the prompt."""

    hit_tokens: int
    """The device holds the KV of tokens ``[0, hit_tokens)``, those that were skipped included."""

    loaded_tokens: int
    """Tokens whose KV this call loaded."""

    loaded_bytes: int
    tiers: Mapping[str, int] = field(default_factory=dict)
    """Loaded tokens by the tier that served them."""

    misses: Mapping[Reason, int] = field(default_factory=dict)
    """Chunks that were not loaded, by reason."""

    slowest: TraceStep | None = field(default=None, compare=False)
    """The part of the call that took longest, where that is known."""


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a store really kept."""

    tokens: int
    """Tokens in the prompt."""

    stored_tokens: int = 0
    """Tokens whose KV was copied and is now on at least one tier."""

    present_tokens: int = 0
    """Tokens whose KV some tier held already: nothing was copied."""

    queued_tokens: int = 0
    """Tokens whose KV was copied and is still to be written."""

    dropped_tokens: int = 0
    """Tokens whose KV no tier could take."""

    stored_bytes: int = 0

    tiers: Mapping[str, int] = field(default_factory=dict)
    """Newly stored tokens by tier."""

    frozen: bool = False
    slowest: TraceStep | None = field(default=None, compare=False)
    """The part of the call that took longest, where that is known."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clear deleted, and where something may be left of what it was to delete."""

    chunks: int
    """Distinct chunks that went, as far as tiers know what they hold."""

    tiers: Mapping[str, int] = field(default_factory=dict)
    """Likewise by tier, a chunk on several of them once on each."""

    left: Mapping[str, str] = field(default_factory=dict)
    """By tier why chunks may be left there; empty if none is."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left on any tier."""
        return not self.left
