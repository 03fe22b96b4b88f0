"""The places of a coded chunk's numbers in its payload, for a device that decodes it.

A serde and a device's kernels have to agree on these. A payload goes to the device as it is; these
are places in it, in bytes, at any alignment. Needs numpy, and never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.plain import GROUP
from hexkv.kernels.coding.tables import TOTAL
from hexkv.ports import CorruptFrame, DType, KVLayout


class CodedPlane(NamedTuple):
    """Levels coded by rANS, as :mod:`hexkv.kernels.coding.plain` reads them."""

    half: int
    """Levels are ``-half .. half``, and their tables ``tables(half)``."""

    scales: int
    """``[tokens]`` largest magnitudes in the dtype of the layout, finite."""

    classes: int
    """``[lanes]`` uint8, each less than ``CLASSES``."""

    turns: int
    """``[lanes]`` uint8, each less than the symbols."""

    states: int
    """``[lanes]`` uint32."""

    lengths: npt.NDArray[np.uint32]
    """Words of each group of lanes."""

    words: int
    """uint16, group after group."""


class Int8Plane(NamedTuple):
    """Numbers in units of the largest magnitude of their token's head over 127."""

    scales: int
    """``[tokens, heads]`` in the dtype of the layout, finite."""

    levels: int
    """``[tokens, heads, width]`` int8."""


class Float8Plane(NamedTuple):
    """float8_e4m3fn, in units of the largest magnitude of their channel over 448."""

    scales: int
    """``[channels]`` in the dtype of the layout, finite."""

    codes: int
    """``[channels, tokens]`` uint8."""


class Int4Plane(NamedTuple):
    """Sixteen steps from the least to the largest number of a group."""

    least: int
    """``[groups]`` in the dtype of the layout, finite."""

    largest: int
    """``[groups]`` in the dtype of the layout, finite."""

    pairs: int
    """Two steps in a byte, the first in its low half, group after group."""

    together: int
    """Tokens of a channel that are a group, in parts of ``[channels, together]``, the last
    of which has the remaining tokens; even. Zero: a head of a token is one, ``[tokens, heads]``."""


class BitsPlane(NamedTuple):
    """The upper bits of numbers coded by rANS, by tables of the payload's; the lower as they are.

    Of bfloat16 and float32 the nine highest bits are coded, of float16 the eight highest.
    """

    lower: Sequence[int]
    """The lower bits, ``[numbers]`` bytes each, the least significant first. The last of bfloat16
    and float32 has seven bits of each number, in seven bytes for each eight: seven eighths of the
    numbers have a byte of their own, in seven parts, whose highest bits are the last eighth's."""

    meanings: int
    """``[symbols]`` uint16: upper bits."""

    symbols: int
    counts: int
    """``[tables, symbols]`` uint16; each row adds up to ``TOTAL``, and none is all of it."""

    tables: int

    classes: int
    """``[lanes]`` uint8, each less than *tables*."""

    states: int
    """``[lanes]`` uint32."""

    lengths: npt.NDArray[np.uint32]
    """Words of each group of lanes."""

    words: int
    """uint16, group after group."""


class RawPlane(NamedTuple):
    """The plane itself."""

    start: int


ScaledPlane: TypeAlias = Int8Plane | Float8Plane | Int4Plane
PlaneOfPayload: TypeAlias = CodedPlane | BitsPlane | ScaledPlane | RawPlane


class DevicePart(NamedTuple):
    """The part of a payload that a device needs."""

    start: int
    end: int
    """Bytes of the payload."""

    planes: Sequence[PlaneOfPayload]
    """Each plane of each layer, in order; their places count from *start*."""


@runtime_checkable
class SupportsDevicePlanes(Protocol):
    """The additional ability of a serde whose payloads a device can decode."""

    def device_planes(
        self, payload: memoryview, layout: KVLayout, tokens: int, layers: range
    ) -> DevicePart:
        """Return where a run of *layers* is in *payload*; the rest of it is not read.

        Everything that could lead a reader out of tables or the payload has been checked; the
        device checks that streams end as they should.

        Raises:
            CorruptFrame: *payload* is not of the form that the serde writes for this shape.
        """
        ...


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
