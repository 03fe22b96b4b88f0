"""The plan of a blend, and the report of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from hexkv.adapters.hf.blending.selectors import Selector, first_layer, selector_of
from hexkv.blending.ports import BlendReport, SegmentRun
from hexkv.ports import InvalidRequest

Ready = Callable[[int], None]
"""Called with a cache layer before its KV is used; returns once that is loaded and rotated."""


Run = SegmentRun
"""Neighbouring tokens of one segment whose KV is reused."""


@dataclass(frozen=True, slots=True)
class BlendPlan:
    """The choice of reused tokens that are computed all the same.

    Layers up to the check layer are computed for every token behind the exact prefix. There,
    fresh and reused KV are compared, and in the layers behind it only the chosen tokens are
    computed, with those that have no KV and the last ones (CacheBlend, arXiv 2405.16444).
    """

    check_layer: int = 1
    """A layer of the cache, from 0 on; -1 if nothing is to be compared (EPIC, 2410.15332)."""

    ratio: float = 0.15
    """The share of the reused tokens that are computed behind the check layer."""

    selector: str | Selector = "question"
    """A name of :data:`~hexkv.adapters.hf.blending.selectors.SELECTORS`, or one of your own."""

    def recomputed(self, layers: int) -> float:
        """The share of the work on reused tokens that is done all the same, of a model's layers."""
        whole = (self.check_layer + 1) / layers
        return whole + self.ratio * (1 - whole)

    def chosen_by(self) -> Selector:
        """Return the selector.

        Raises:
            InvalidRequest: there is none of this name, or it compares KV and no layer is checked
                in which KV depends on other tokens, or the ratio is none.
        """
        selector = selector_of(self.selector)
        if not 0.0 <= self.ratio <= 1.0:
            raise InvalidRequest(f"ratio must be between 0 and 1, not {self.ratio}")
        if self.check_layer < (first := first_layer(selector)):
            reason = "; in layer 0 deviations are rounding alone" if first else ""
            raise InvalidRequest(
                f"selector {self.selector!r} compares a layer: give check_layer {first} or more"
                f"{reason}"
            )
        return selector


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """A prompt and its KV in a room. The prompts of a shared room end in one place."""

    tokens: Sequence[int]
    prefix: int = 0
    """Tokens at the front whose KV is exact."""

    reused: Sequence[Run] = ()
    """Tokens whose KV was computed elsewhere, in order; those in the prefix, or among the
    tokens whose logits are requested, are not used."""

    ready: Ready | None = None
    """Called before a layer's KV is used, where it is still being loaded."""


@dataclass(frozen=True, slots=True)
class BlendCounts:
    """Tokens of a prompt by the origin of their KV, and the rows computed of it."""

    prefix: int
    """Tokens whose exact KV was there. Not computed."""

    reused: int
    """Tokens whose KV of another place was kept behind the check layer."""

    recomputed: int
    """Tokens that had KV of another place and were chosen."""

    computed: int
    """Tokens that had no KV, and those whose logits were requested."""

    rows: Sequence[int]
    """Tokens computed in each layer."""

    @property
    def share(self) -> float:
        """Tokens times layers that were computed, of those of the whole prompt."""
        tokens = self.prefix + self.reused + self.recomputed + self.computed
        return sum(self.rows) / (tokens * len(self.rows))


@dataclass(frozen=True, slots=True)
class Blended:
    """A prompt, blended to its end."""

    cache: DynamicCache
    """KV of the whole prompt, to go on decoding from. Approximate: never to be stored."""

    logits: torch.Tensor
    """``[keep, vocabulary]`` of the token after each of the last *keep* tokens."""

    counts: BlendCounts
    select_seconds: float


@dataclass(frozen=True, slots=True)
class BlendedTogether:
    """Prompts of a batch, blended to their ends."""

    logits: torch.Tensor
    """``[prompts, keep, vocabulary]`` of the token after each of the last *keep* tokens."""

    counts: Sequence[BlendCounts]
    """The counts of each prompt."""

    select_seconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class BlendedPrefill:
    """A prompt, blended or computed to its end."""

    cache: DynamicCache
    """KV of the whole prompt, to go on decoding from; approximate if it was blended."""

    logits: torch.Tensor
    """``[vocabulary]``, of the first new token."""

    report: BlendReport
    """The outcome of the prompt, and its tokens by kind."""

    share: float
    """Tokens times layers that were computed, of those of the whole prompt."""

    wait_seconds: float
    """How long the model waited for KV to blend; the other loading went on beside it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BlendedBatch:
    """Prompts of a batch, each blended or computed to its end. They end together."""

    cache: DynamicCache
    """KV of all prompts, to go on decoding from: ``[prompts, heads, tokens, width]``."""

    logits: torch.Tensor
    """``[prompts, vocabulary]``, of the first new token of each."""

    attention_mask: torch.Tensor
    """``[prompts, tokens]`` int64: 0 before the first token of a shorter prompt, else 1."""

    reports: Sequence[BlendReport]
    """The outcome of each prompt."""

    shares: Sequence[float]
    """Tokens times layers that were computed, of those of each prompt."""

    seconds: float
