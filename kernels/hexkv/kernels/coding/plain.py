"""Quantising and interleaved rANS in numpy, for all lanes at once; ``compiled`` does the same.

A *lane* is one channel of a plane; its symbols are those of all tokens. 64 neighbouring lanes are a
*group* with one stream of 16-bit words between them: going through the tokens, each decodes a
symbol, and those whose state falls below 2**16 take the next words, in the order of the lanes. So
lanes are decoded in parallel, and no stream has a length of its own.

States have 32 bits, and start encoding, so end decoding, at 2**16. See Duda, "Asymmetric numeral
systems" (arXiv 1311.2540), and Giesen, "Interleaved entropy coders" (1402.3392).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.bits import join as join
from hexkv.kernels.coding.bits import lower as lower
from hexkv.kernels.coding.bits import symbols as symbols
from hexkv.kernels.coding.floats import Floats, Words
from hexkv.kernels.coding.floats import narrowed as narrowed
from hexkv.kernels.coding.tables import BITS, SPREAD, TOTAL, Gaussians, Tables
from hexkv.kernels.coding.tables import counted as counted

Bytes: TypeAlias = npt.NDArray[np.uint8]
Streams: TypeAlias = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]
"""Words of all groups, one after another; words of each group; the state of each lane."""

GROUP = 64
LEAST = 1 << 16


def quantise(values: Floats, half: int) -> tuple[Bytes, Floats] | None:
    """Return the nearest of ``-half .. half`` in units of each row's largest magnitude over *half*.

    Args:
        values: ``[tokens, channels]``.
        half: the largest level.

    Returns:
        Levels plus *half*, ``[tokens, channels]``, and the largest magnitude of each token;
        ``None`` if a value is not finite.
    """
    with np.errstate(invalid="ignore"):
        peaks = np.abs(values).max(axis=1)
    if not np.isfinite(peaks).all():
        return None
    divisors = np.where(peaks > 0, peaks, np.float32(1))
    with np.errstate(under="ignore"):
        levels = np.rint(values / divisors[:, None] * np.float32(half))
    return (levels + half).astype(np.uint8), peaks


def moments(symbols: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the sum of each lane's *symbols*, ``[tokens, lanes]``, and that of their squares."""
    wide = symbols.astype(np.int64)
    return wide.sum(axis=0), (wide * wide).sum(axis=0)


def histograms(symbols: Bytes) -> npt.NDArray[np.uint32]:
    """Count each of 256 symbols in each lane of ``[tokens, lanes]`` *symbols*: ``[lanes, 256]``."""
    lanes = symbols.shape[1]
    places = np.arange(lanes, dtype=np.int64) * 256 + symbols
    return np.bincount(places.reshape(-1), minlength=lanes * 256).astype(np.uint32).reshape(-1, 256)


def by_class(seen: npt.NDArray[np.uint32], classes: Bytes, many: int) -> npt.NDArray[np.int64]:
    """Count how often lanes of each of *many* classes have each symbol, ``[many, symbols]``.

    Args:
        seen: ``[lanes, symbols]``, how often each lane has them.
        classes: that of each lane.
        many: more than any of *classes*.
    """
    found = np.zeros((many, seen.shape[1]), np.int64)
    np.add.at(found, classes, seen)
    return found


def weighed(
    seen: npt.NDArray[np.uint32], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return ``[rows, lanes]``: sums of *seen*, ``[lanes, symbols]``, by each row of *weights*.

    Symbol by symbol, since floats in another order add up to another sum.
    """
    found = np.zeros((len(weights), len(seen)))
    for symbol in range(seen.shape[1]):
        found += weights[:, symbol, None] * seen[:, symbol]
    return found


def fitting(
    sums: npt.NDArray[np.int64], squares: npt.NDArray[np.int64], tokens: int, found: Gaussians
) -> tuple[Bytes, Bytes]:
    """Return the class of width and the turn of each lane, from the moments of its symbols."""
    means = (2 * sums + tokens) // (2 * tokens)
    spreads = squares - 2 * means * sums + tokens * means * means
    classes = np.searchsorted(found.spreads, spreads * SPREAD // tokens)
    turns = (means - found.half) % found.symbols
    return classes.astype(np.uint8), turns.astype(np.uint8)


def encode(symbols: Bytes, classes: Bytes, turns: Bytes, tables: Tables) -> Streams:
    """Code ``[tokens, lanes]`` *symbols*.

    Args:
        symbols: less than ``tables.symbols``.
        classes: the row of the tables that each lane uses.
        turns: subtracted from each lane's symbols first, modulo their number.
        tables: the probabilities.
    """
    tokens, lanes = symbols.shape
    groups = -(-lanes // GROUP)
    turned = (symbols.astype(np.int64) - turns) % tables.symbols
    states = np.full(lanes, LEAST, np.uint32)
    sent = np.zeros((tokens, groups * GROUP), np.bool_)
    low = np.zeros((tokens, groups * GROUP), np.uint16)
    for token in range(tokens - 1, -1, -1):
        count = tables.counts[classes, turned[token]]
        start = tables.starts[classes, turned[token]]
        full = states >= count << (32 - BITS)
        sent[token, :lanes] = full
        low[token, :lanes] = states & 0xFFFF
        states = np.where(full, states >> 16, states)
        states = ((states // count << BITS) + states % count + start).astype(np.uint32)
    by_group = (groups, tokens, GROUP)
    sent = sent.reshape(tokens, groups, GROUP).transpose(1, 0, 2)
    low = low.reshape(tokens, groups, GROUP).transpose(1, 0, 2)
    return low[sent], sent.reshape(by_group).sum(axis=(1, 2), dtype=np.uint32), states


def decode(
    streams: Streams,
    classes: Bytes,
    turns: Bytes,
    tables: Tables,
    values: Words,
    into: Words,
) -> bool:
    """Fill *into*, ``[tokens, lanes]``, with the values of the symbols in *streams*.

    Args:
        streams: the result of :func:`encode`, or anything of the right lengths.
        classes: less than ``CLASSES``.
        turns: less than ``tables.symbols``.
        tables: the probabilities.
        values: ``[tokens, 2 * symbols]``: the value of each symbol of each token, twice, since a
            symbol and its turn add up to less than twice their number. Or ``[1, symbols]`` of all
            tokens, if there are no turns.
        into: of the type of *values*.

    Returns:
        True if every stream ended in the state in which an encoder begins.
    """
    words, lengths, states = streams
    lanes = len(states)
    groups = len(lengths)
    padded = np.concatenate([words, np.zeros(1, np.uint16)])
    ends = np.cumsum(lengths, dtype=np.int64)
    at = ends - lengths
    rows = classes.astype(np.int64) * TOTAL
    hungry = np.zeros((groups, GROUP), np.bool_)
    for token, row in enumerate(np.broadcast_to(values, (len(into), values.shape[1]))):
        entries = tables.slots[rows + (states & (TOTAL - 1))]
        into[token] = row[(entries & 0xFF) + turns]
        states = (entries >> 20) * (states >> BITS) + (entries >> 8 & (TOTAL - 1))
        hungry.reshape(-1)[:lanes] = states < LEAST
        places = at[:, None] + np.cumsum(hungry, axis=1) - hungry
        at = at + hungry.sum(axis=1)
        taken = padded[np.minimum(places, len(words))].reshape(-1)[:lanes]
        states = np.where(states < LEAST, states << 16 | taken, states)
    return bool((at == ends).all() and (states == LEAST).all())
