"""Proof that blending is worse than its record allows, from few comparisons with heavy tails.

Most requests of a broken blending may look right, so a mean and its deviation say little about
ten of them. Instead three shares are bet on, each against the most that the record allows: the
divergence against its bound, the changed answers, and the tokens beyond a quantile of the sample.
A bet on a ratio *x* of what was found to what is allowed multiplies its stake by
``1 + share * (x - 1)``. As long as *x* is 1 or less on average, no choice of stakes makes a gain
of 100 more likely than 1 in 100, however heavy the tail and however long it goes on (Ville's
inequality; Waudby-Smith and Ramdas, arXiv 2010.09686). So blending that is within its record stays
on in 99 of 100 lives of a process.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hexkv.adapters.hf.blending.record import BlendRecord

GAIN = 100.0
"""The gain that proves it: one life in so many is switched off by chance, at the most."""

KEPT = 64
"""Tokens of a request whose expectations are compared, at the most: the last ones."""

_STAKES = (0.7, 0.15, 0.15)
"""Of the divergence, the changed answers, and the tokens beyond the quantile."""

_SHARES = (0.5, 0.9)
"""Of a stake that is risked at once; half of each stake goes to either."""

_AT_FIRST = 0.95
"""Staked at the first comparison. The rest is staked later, ever less of it: what breaks after a
thousand good comparisons must not have to win back a thousand losses."""

_LOOSER = 2.0
"""How many times the sample's shares of changed answers and of tokens beyond its quantile are
allowed: of a few dozen prompts these are rough."""

_BEYOND = 0.1
"""The share of a sample's tokens beyond the record's quantile."""

_UNSEEN = 3.0
"""Changed answers that a sample without any may have missed, with 95 %."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Blended expectations of one request, beside those of full computation."""

    kl: float
    """Mean divergence of the compared tokens, in nats."""

    changed: float
    """Share of them after which the likeliest token is another one."""

    beyond: float
    """Share of them whose divergence is more than :func:`tail_of` the record."""

    @classmethod
    def of(
        cls, full: torch.Tensor, blended: torch.Tensor, record: BlendRecord | None
    ) -> Comparison:
        """Compare logits ``[tokens, vocabulary]`` with the *full* ones."""
        kl = divergences(full, blended)
        changed = (full.argmax(-1) != blended.argmax(-1)).double().mean()
        limit = 0.0 if record is None else tail_of(record)
        return cls(float(kl.mean()), float(changed), float((kl > limit).double().mean()))


def tail_of(record: BlendRecord) -> float:
    """The divergence beyond which a token is in the tail, in nats.

    It is the record's quantile, as much larger as the bound is than the mean of the sample.
    """
    return record.kl_quantile * (record.bound / record.kl if record.kl else 1.0)


def divergences(full: torch.Tensor, blended: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of *blended* from *full*, in nats: ``[tokens]``.

    Args:
        full: logits ``[tokens, vocabulary]``.
        blended: logits of the same shape.
    """
    wanted = full.double().log_softmax(-1)
    given = blended.double().log_softmax(-1)
    return (wanted.exp() * (wanted - given)).sum(-1).clamp_min(0)


class Evidence:
    """The comparisons of a process so far. Not safe from several threads."""

    def __init__(self, record: BlendRecord) -> None:
        self._bound = record.bound
        self.allowed_changed = _LOOSER * (1 - record.agreement) + _UNSEEN / record.tokens
        """The share of changed answers that the record allows."""

        self._allowed_beyond = _LOOSER * _BEYOND + _UNSEEN / record.tokens
        self._gains = [[0.0] * len(_SHARES) for _ in _STAKES]
        self._kl = self._changed = 0.0
        self.comparisons = 0

    @property
    def kl(self) -> float:
        """The mean divergence so far, in nats."""
        return self._kl / max(1, self.comparisons)

    @property
    def changed(self) -> float:
        """The share of changed answers so far."""
        return self._changed / max(1, self.comparisons)

    def add(self, found: Comparison) -> bool:
        """Take in one more; ``True`` if blending is now proven to be worse than allowed."""
        self.comparisons += 1
        self._kl += found.kl
        self._changed += found.changed
        number = self.comparisons
        staked = _AT_FIRST if number == 1 else (1 - _AT_FIRST) / (number * (number - 1))
        ratios = (
            found.kl / self._bound,
            found.changed / self.allowed_changed,
            found.beyond / self._allowed_beyond,
        )
        total = 0.0
        for gains, ratio, stake in zip(self._gains, ratios, _STAKES, strict=True):
            for index, share in enumerate(_SHARES):
                gains[index] = (gains[index] + staked) * (1 + share * (ratio - 1))
            total += stake * sum(gains) / len(_SHARES)
        # Not "more than": a divergence that is no number proves it, too.
        return not total < GAIN
