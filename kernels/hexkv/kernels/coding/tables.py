"""Probabilities that encoder and decoder know without sending them: Gaussians of 32 widths.

The quantised values of one channel are nearly Gaussian, so one byte that names a width carries
almost as much as the table of counts that a chunk could carry along, which would take two bits an
element (measured; see the README). All is computed with decimals and integers, so that every
machine has the same tables: a difference of one would scramble every chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import cache, cached_property
from itertools import pairwise
from math import isqrt

import numpy as np
import numpy.typing as npt

BITS = 12
"""Probabilities are multiples of 2**-12, and none is zero: any symbol can be coded."""

TOTAL = 1 << BITS

SPREAD = 1 << 24
"""Units of a mean square."""

CLASSES = 32
"""Widths, from a seventh of a level to more than the widest alphabet, in steps of a sixth."""

HALVES = (3, 7, 14, 31)
"""Alphabets: levels ``-half .. half`` around zero, so 7, 15, 29 or 63 of them."""

_NARROWEST = Decimal("0.15")
_STEP = Decimal(7) / Decimal(6)
_DIGITS = Context(prec=40, rounding=ROUND_HALF_EVEN)
_FAR = 7
"""Beyond so many widths a Gaussian has less left than these tables can represent."""


@dataclass(frozen=True)
class Tables:
    """Probabilities of symbols, a row of them for each class of lanes.

    Each row of *counts* adds up to ``TOTAL``, and none of them is all of it. Symbols whose count is
    zero cannot be coded. There are 256 at most.
    """

    counts: npt.NDArray[np.uint32]
    """``[classes, symbols]``: probability of each symbol, in units of 2**-12."""

    @cached_property
    def starts(self) -> npt.NDArray[np.uint32]:
        """``[classes, symbols]``: the sum of the counts before."""
        return np.cumsum(self.counts, axis=1, dtype=np.uint32) - self.counts

    @cached_property
    def slots(self) -> npt.NDArray[np.uint32]:
        """``[classes * TOTAL]``: a decoder's entry for the low bits of its state.

        That is ``count << 20 | place << 8 | symbol``, where *place* counts the slots of the symbol.
        """
        symbols = np.arange(self.symbols, dtype=np.uint32)
        # Modulo 2**32: to the place of a row's slot, its symbol's start is below zero.
        entries = (self.counts << 20) - (self.starts << 8) + symbols
        slots = np.repeat(entries.reshape(-1), self.counts.reshape(-1)).reshape(-1, TOTAL)
        slots += np.arange(TOTAL, dtype=np.uint32) << 8
        return slots.reshape(-1)

    @cached_property
    def packed(self) -> npt.NDArray[np.uint32]:
        """``[classes, symbols]``: ``start << 16 | count``, the entries of an encoder."""
        return np.asarray(self.starts << 16 | self.counts, np.uint32)

    @property
    def symbols(self) -> int:
        """The number of symbols in the alphabet."""
        return int(self.counts.shape[1])


@dataclass(frozen=True)
class Gaussians(Tables):
    """Tables of one alphabet. Row: class of width; symbol: level plus *half*."""

    half: int

    spreads: npt.NDArray[np.int64]
    """``[CLASSES - 1]``: the mean square, in units of 2**-24, above which the next class fits."""


def counted(seen: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return counts for :class:`Tables`, as close as possible to how often symbols were *seen*.

    Args:
        seen: ``[classes, symbols]``, of two symbols at least. A symbol that was never seen has no
            count, and cannot be coded; in a class without any symbols, that is all but the first
            two.
    """
    there = seen > 0
    sums = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    counts = there + seen * (TOTAL - there.sum(axis=1, keepdims=True)) // sums
    rows = np.arange(len(seen))
    likeliest = counts.argmax(axis=1)
    counts[rows, likeliest] += TOTAL - counts.sum(axis=1)
    alone = counts[rows, likeliest] == TOTAL
    counts[rows[alone], likeliest[alone]] -= 1
    counts[rows[alone], (likeliest[alone] + 1) % seen.shape[1]] += 1
    return np.asarray(counts, np.uint32)


def tables(half: int) -> Gaussians:
    """Return the tables for levels ``-half .. half``; *half* is one of ``HALVES``."""
    if half not in HALVES:
        raise ValueError(f"no alphabet has levels from -{half} to {half}")
    return _all()[half]


@cache
def _all() -> dict[int, Gaussians]:
    """Make all tables, in a fifth of a second: so no payload can take memory by naming another."""
    return {half: _tables(half) for half in HALVES}


def _tables(half: int) -> Gaussians:
    with localcontext(_DIGITS):
        rows = [_shares(half, _NARROWEST * _STEP**index) for index in range(CLASSES)]
        squares = [
            int(SPREAD * sum(share * (s - half) ** 2 for s, share in enumerate(row)))
            for row in rows
        ]
        counts = np.array([_counts(row) for row in rows], np.uint32)
    spreads = [isqrt(low * high) for low, high in pairwise(squares)]
    return Gaussians(counts, half, np.array(spreads, np.int64))


def _shares(half: int, width: Decimal) -> list[Decimal]:
    """Return the probabilities of all levels under a Gaussian of *width* levels around zero.

    The share beyond the outermost levels is added to them: values there were clipped to them.
    """
    below = [Decimal(0)]
    below += [_normal((Decimal(2 * level - 1) / 2) / width) for level in range(1 - half, half + 1)]
    below.append(Decimal(1))
    return [above - under for under, above in pairwise(below)]


def _counts(shares: list[Decimal]) -> list[int]:
    """Return *shares* as whole counts that add up to ``TOTAL``, none of them zero."""
    counts = [1 + int(share * (TOTAL - len(shares))) for share in shares]
    counts[len(counts) // 2] += TOTAL - sum(counts)
    return counts


def _normal(x: Decimal) -> Decimal:
    """Return the normal distribution function, by its series of positive terms (Marsaglia 2004)."""
    if abs(x) > _FAR:
        return Decimal(int(x > 0))
    term = total = x
    n = 1
    while abs(term) > Decimal(10) ** -30:
        n += 2
        term = term * x * x / n
        total += term
    return Decimal("0.5") + total * (-x * x / 2).exp() / (2 * _PI).sqrt()


_PI = Decimal("3.141592653589793238462643383279502884197")
