"""What a blender is asked: segments that others computed alone, and what follows them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from training import alias

PIECES = 4
PIECE = 256
"""Bytes of a segment of text."""

AFTER = 128
"""Bytes of text behind the segments."""

ALIASES = 0.05
"""The share of keys that stand for others. Each is two tokens, of which most lean on another
segment: 15 of 100 tokens are enough for all."""


@dataclass(frozen=True, slots=True)
class Segmented:
    """One prompt. Its first segment is an exact prefix; the others were computed alone."""

    segments: tuple[Tensor, ...]
    """``[tokens]`` each."""

    after: Tensor
    """``[tokens]``, which no one has KV of. What the model expects after each of them counts."""

    wanted: Tensor
    """``[tokens]``: what really follows; -1 where that is not known."""

    across: Tensor
    """``[tokens]`` bool: where that hangs on what one segment says of another one."""

    @property
    def tokens(self) -> Tensor:
        """The whole prompt."""
        return torch.cat([*self.segments, self.after])


def pieces_of(text: bytes, count: int) -> list[Segmented]:
    """*count* neighbourhoods, evenly spread over *text*."""
    length = PIECES * PIECE + AFTER
    every = (len(text) - length) // count
    cases = []
    for start in range(0, every * count, every):
        window = torch.tensor(list(text[start : start + length]))
        after = window[PIECES * PIECE :]
        wanted = torch.cat([after[1:], torch.tensor([-1])])
        across = torch.zeros(AFTER, dtype=torch.bool)
        cases.append(Segmented(torch.split(window[: PIECES * PIECE], PIECE), after, wanted, across))
    return cases


def lists(count: int, seed: int = 35, share: float = ALIASES) -> list[Segmented]:
    """*count* of the longest lists of facts and aliases, cut between two keys."""
    generator = torch.Generator().manual_seed(seed)
    cases = []
    for _ in range(count):
        aliases = alias.layout(alias.MOST, share, generator)
        made = alias.sequences(1, aliases, generator)
        ends = list(accumulate((1 + aliases.long()).tolist(), initial=0))
        bounds = [ends[alias.MOST * piece // PIECES] for piece in range(PIECES + 1)]
        tokens, asked = made.tokens[0, :-1], made.asked[0]
        piece_of = torch.arange(alias.MOST) * PIECES // alias.MOST
        known = made.known[0]
        leans = piece_of[known] != piece_of
        cases.append(
            Segmented(
                tuple(tokens[start:end] for start, end in pairwise(bounds)),
                tokens[bounds[-1] :],
                made.labels[0, 1:][bounds[-1] :],
                leans[asked],
            )
        )
    return cases
