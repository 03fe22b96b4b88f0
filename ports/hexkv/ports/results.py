"""The results of the engine's calls: one value per call, counted from outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from hexkv.ports.outcomes import Reason
from hexkv.ports.runtime._kinds import brief
from hexkv.ports.runtime.steps import TraceStep


class Lookup(NamedTuple):
    """The longest prefix of a prompt that the tiers are expected to have."""

    tokens: int
    """Tokens in the prompt."""

    hit_tokens: int
    """Length of the longest prefix whose every chunk some tier holds."""

    tiers: Mapping[str, int] = MappingProxyType({})
    """Tokens of that prefix by the tier that would serve them."""

    missing: Reason | None = None
    """Why the chunk behind it is not found; ``None`` if all chunks are, or it is unknown."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The result of a retrieve: the KV that the device has now."""

    tokens: int
    """Tokens in the prompt."""

    hit_tokens: int
    """The device holds the KV of tokens ``[0, hit_tokens)``, skipped ones included."""

    loaded_tokens: int
    """Tokens whose KV this call loaded."""

    loaded_bytes: int
    tiers: Mapping[str, int] = field(default_factory=dict)
    """Loaded tokens by the tier that served them."""

    misses: Mapping[Reason, int] = field(default_factory=dict)
    """Chunks that were not loaded, by reason."""

    slowest: TraceStep | None = field(default=None, compare=False, repr=False)
    """The part of the call that took longest; ``None`` if unknown."""

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The result of a store: the tokens that the tiers keep, and those that they do not."""

    tokens: int
    """Tokens in the prompt."""

    stored_tokens: int = 0
    """Tokens whose KV was copied and is now on at least one tier."""

    present_tokens: int = 0
    """Tokens whose KV some tier held already: nothing was copied."""

    queued_tokens: int = 0
    """Tokens whose KV was copied and is still to be written."""

    dropped_tokens: int = 0
    """Tokens whose KV no tier could take: the sum of :attr:`drops`."""

    stored_bytes: int = 0

    tiers: Mapping[str, int] = field(default_factory=dict)
    """Newly stored tokens by tier."""

    frozen: bool = False
    slowest: TraceStep | None = field(default=None, compare=False, repr=False)
    """The part of the call that took longest; ``None`` if unknown."""

    drops: Mapping[Reason, int] = field(default_factory=dict)
    """Dropped tokens by the reason of the tier that was to take them; ``DROPPED`` if unknown."""

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class Cleared:
    """The result of a clear: the deleted chunks, and the tiers where some may be left."""

    chunks: int
    """Distinct deleted chunks, as far as tiers know their content."""

    tiers: Mapping[str, int] = field(default_factory=dict)
    """Deleted chunks by tier; a chunk on several tiers counts on each."""

    left: Mapping[str, str] = field(default_factory=dict)
    """By tier why chunks may be left there; empty if none is."""

    @property
    def complete(self) -> bool:
        """True if nothing is left on any tier."""
        return not self.left
