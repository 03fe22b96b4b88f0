"""The chunks that a retrieve has loaded so far, and those that it missed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hexkv.core.keys.prompts import Prompt
from hexkv.ports import Bounds, Reason


@dataclass(slots=True)
class Arrived:
    """The chunks that a retrieve has loaded so far, and those that it missed."""

    chunks: int = 0
    size: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens by tier."""

    by_tier: dict[str, int] = field(default_factory=dict)
    """Chunks by tier."""

    asked: int = 0
    """Chunks requested."""

    asked_tokens: int = 0
    """Tokens in them."""

    end_token: int = 0
    """The end of the last chunk that arrived."""

    misses: dict[Reason, int] = field(default_factory=dict)
    """Chunks that did not arrive, by reason."""

    missed_tokens: dict[Reason, int] = field(default_factory=dict)
    """Tokens in them, by reason."""

    def add(self, part: Prompt, tiers: Sequence[str]) -> None:
        """Count the chunks of *part* as arrived, each from one of *tiers*."""
        self.chunks += len(part.keys)
        self.end_token = part.ends[-1] if part.keys else self.end_token
        at = 0
        for tier, run in groupby(tiers):
            count = len(list(run))
            tokens = sum(part.ends[at : at + count]) - sum(part.starts[at : at + count])
            self.size += part.layout.chunk_bytes(tokens)
            self.tokens[tier] = self.tokens.get(tier, 0) + tokens
            self.by_tier[tier] = self.by_tier.get(tier, 0) + count
            at += count

    def end(self, asked: Bounds, why: Reason | None, *, short: bool = False) -> None:
        """End the load of the chunks *asked*, of which the next is missing because of *why*.

        *short* adds one chunk: a tail in place of one of them. Its tokens are part of that one's.
        """
        ends = asked.ends
        if not ends:
            return
        self.asked = len(ends) + short
        self.asked_tokens = ends[-1] - asked.starts[0]
        lost = self.asked - self.chunks
        if why is None or not lost:
            return  # everything has come
        here = self.end_token if self.chunks else asked.starts[0]
        next_end = ends[bisect_right(ends, here, hi=len(ends) - 1)]
        self._miss(why, 1, next_end - here)
        if lost > 1:
            rest = why if why.gone else Reason.BEHIND_A_MISS
            self._miss(rest, lost - 1, ends[-1] - next_end)

    def _miss(self, why: Reason, chunks: int, tokens: int) -> None:
        self.misses[why] = self.misses.get(why, 0) + chunks
        self.missed_tokens[why] = self.missed_tokens.get(why, 0) + tokens
