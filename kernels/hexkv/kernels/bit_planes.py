"""Planes of which a serde codes the upper bits, as ``in_triton.bits`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.plain import GROUP
from hexkv.kernels.coding.tables import TOTAL
from hexkv.kernels.payloads import BitsPlane
from hexkv.ports import CorruptFrame, DType

FORMS = {DType.BFLOAT16: (0, True, 7), DType.FLOAT16: (1, False, 8), DType.FLOAT32: (2, True, 23)}
"""By dtype: the number of arrays of whole bytes in its lower bits; whether there is one of seven
bits; the number of all lower bits."""

_SYMBOLS = 256


class Bits(NamedTuple):
    """Lines of a plane: of its tables, and of its groups of lanes."""

    tables: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]


def lines(
    there: BitsPlane, row: int, first: int, tokens: int, dtype: DType
) -> tuple[Bits, tuple[int, ...], tuple[int, ...]]:
    """Return a plane's lines, and where its parts begin in the payload, and end.

    Args:
        there: its places.
        row: elements of a token.
        first: element of the chunk where it begins.
        tokens: of the chunk.
        dtype: of the layout, one of ``FORMS``.

    Raises:
        CorruptFrame: these are no places of such a plane.
    """
    whole, sevens, _ = FORMS[dtype]
    count = -(-row // GROUP)
    if len(there.lengths) != count or len(there.lower) != whole + sevens:
        raise CorruptFrame(f"{len(there.lengths)} groups of lanes, where there are {count}")
    if not 2 <= there.symbols <= _SYMBOLS or not 1 <= there.tables <= _SYMBOLS:
        raise CorruptFrame(f"{there.tables} tables of {there.symbols} symbols")
    share = -(-row * tokens // 8)
    lanes = np.arange(count, dtype=np.int64) * GROUP
    ends = there.words + 2 * np.cumsum(there.lengths, dtype=np.int64)
    groups = np.zeros((count, 14), np.int64)
    groups[:, 0], groups[:, 1] = ends - 2 * there.lengths.astype(np.int64), ends
    groups[:, 2], groups[:, 3] = there.states + 4 * lanes, there.classes + lanes
    groups[:, 5] = there.meanings
    groups[:, 6 : 6 + whole + sevens] = list(there.lower)
    groups[:, 9], groups[:, 10], groups[:, 11] = share, first, lanes
    groups[:, 12], groups[:, 13] = row, np.minimum(row - lanes, GROUP)
    bytes_of_counts = 2 * there.symbols
    tables = np.empty((there.tables, 2), np.int64)
    tables[:, 0] = there.counts + bytes_of_counts * np.arange(there.tables)
    tables[:, 1] = there.symbols
    begins = *there.lower, there.meanings, there.counts, there.classes, there.states, there.words
    sizes = [row * tokens] * whole + [7 * share] * sevens
    end_of_lower = (at + size for at, size in zip(there.lower, sizes, strict=True))
    last = (
        *end_of_lower,
        there.meanings + bytes_of_counts,
        there.counts + bytes_of_counts * there.tables,
        there.classes + row,
        there.states + 4 * row,
        int(ends[-1]),
    )
    return Bits(tables, groups), begins, last


def joined(planes: Sequence[Bits]) -> Bits:
    """Return the lines of several planes; each plane's tables follow those of the one before."""
    starts = accumulate((len(plane.tables) * TOTAL for plane in planes), initial=0)
    groups = [plane.groups.copy() for plane in planes]
    for made, start in zip(groups, starts, strict=False):
        made[:, 4] = start
    return Bits(np.concatenate([plane.tables for plane in planes]), np.concatenate(groups))
