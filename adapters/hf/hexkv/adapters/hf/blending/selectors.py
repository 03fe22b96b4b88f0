"""Which reused tokens are computed all the same: scores from a layer's KV and attention.

The protocol stands here and not among the ports, which know no tensors: a selector belongs to
the code that computes attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from hexkv.ports import InvalidRequest


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts about the candidates: tokens with reused KV, in the order of the prompt.

    KV is of the check layer, ``[1, heads, candidates, width]`` of the model's dtype, with keys
    rotated to the tokens' places in the prompt. Without a check layer it is ``None``.
    """

    positions: torch.Tensor
    """``[candidates]`` int64: in the prompt."""

    own: torch.Tensor
    """``[candidates]`` int64: in the token's own segment."""

    fresh: tuple[torch.Tensor, torch.Tensor] | None
    """Keys and values that were computed in the prompt."""

    reused: tuple[torch.Tensor, torch.Tensor] | None
    """Keys and values that were computed elsewhere."""

    attention: torch.Tensor | None
    """``[candidates]`` float32: the question's attention, summed over its tokens and heads.

    The question begins after the last reused token. ``None`` where no selector needs it.
    """

    def pair(self, plane: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh and reused keys (0) or values (1).

        Raises:
            InvalidRequest: no layer was checked.
        """
        if self.fresh is None or self.reused is None:
            raise InvalidRequest("no layer was checked, so there is no KV to compare")
        return self.fresh[plane], self.reused[plane]


@runtime_checkable
class Selector(Protocol):
    """Gives each candidate a score; those with the highest ones are computed."""

    @property
    def needs_layer(self) -> bool:
        """True if it reads :attr:`Evidence.fresh`, ``reused`` or ``attention``."""
        ...

    @property
    def needs_attention(self) -> bool:
        """True if it reads :attr:`Evidence.attention`."""
        ...

    def scores(self, evidence: Evidence) -> torch.Tensor:
        """``[candidates]`` of any real dtype. Of equal scores any may be taken."""
        ...


@dataclass(frozen=True, slots=True)
class Deviation:
    """By the squared distance of fresh and reused KV, summed over heads (CacheBlend)."""

    plane: int
    """0 for keys, 1 for values."""

    needs_layer = True
    needs_attention = False

    def scores(self, evidence: Evidence) -> torch.Tensor:
        fresh, reused = evidence.pair(self.plane)
        return (fresh.float() - reused.float()).square().sum((0, 1, 3))


@dataclass(frozen=True, slots=True)
class First:
    """The first tokens of each segment, whose attention was a beginning's (EPIC's LegoLink)."""

    needs_layer = False
    needs_attention = False

    def scores(self, evidence: Evidence) -> torch.Tensor:
        return -evidence.own


@dataclass(frozen=True, slots=True)
class Question:
    """The question's attention (ProphetKV, arXiv 2602.02579)."""

    needs_layer = True
    needs_attention = True

    def scores(self, evidence: Evidence) -> torch.Tensor:
        if evidence.attention is None:
            raise InvalidRequest(
                "the model's attention is not computed where torch shows it: take another selector"
            )
        return evidence.attention


@dataclass(frozen=True, slots=True)
class Random:
    """Any tokens: the baseline that every other selector has to beat."""

    seed: int = 0
    needs_layer = False
    needs_attention = False

    def scores(self, evidence: Evidence) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.rand(len(evidence.positions), generator=generator)


def first_layer(selector: Selector) -> int:
    """Return the first check layer in which *selector* chooses by more than chance; -1 for none.

    In layer 0 KV depends on no other token: deviations there are rounding.
    """
    if isinstance(selector, Deviation):
        return 1
    return 0 if selector.needs_layer else -1


SELECTORS: Mapping[str, Callable[[], Selector]] = {
    "value-deviation": lambda: Deviation(1),
    "key-deviation": lambda: Deviation(0),
    "first": First,
    "question": Question,
    "random": Random,
}


def selector_of(named: str | Selector) -> Selector:
    """Return the selector of a name.

    Raises:
        InvalidRequest: there is none.
    """
    if not isinstance(named, str):
        return named
    if named not in SELECTORS:
        raise InvalidRequest(f"there is no selector {named!r}: choose of {', '.join(SELECTORS)}")
    return SELECTORS[named]()
