"""The serde ``rans``: signs and exponents entropy-coded, all other bits as they are.

The mantissas of KV are noise. Its exponents take some twenty values, and with channels whose mean
is not zero so do signs; interleaved rANS (:mod:`hexkv.kernels.coding.plain`) codes both to a
fraction of a bit of their entropy. A lane is a channel, and names one of a few tables, which are
counted for each plane: tables of its own would cost a channel more than they save. All groups of
64 lanes are decoded independently.

A block of format 1; "upper" are the nine highest bits of bfloat16 and float32, and the eight
highest of all others::

    ..                the lower bits; see :mod:`hexkv.kernels.coding.bits`
    1                 symbols, less one
    1                 tables
    symbols x 2       upper bits that a symbol stands for
    tables x symbols x 2  counts of each, which add up to 4096 in each table
    lanes x 1         table of each lane
    lanes x 4         state of each lane
    groups x 4        words of each 64 lanes
    ..                the words, 2 bytes each, group by group

:mod:`hexkv.plugins.support.payload` describes the format around a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding import bits
from hexkv.kernels.coding.choosing import Choice, Coder
from hexkv.kernels.coding.floats import Words
from hexkv.kernels.coding.pieces import Cursor, Piece, raw
from hexkv.kernels.coding.plain import GROUP
from hexkv.kernels.coding.tables import TOTAL, Tables
from hexkv.kernels.payloads import Coding, Numbers, PlaneForm, plane_blocks
from hexkv.plugins.support.payload import PlaneSerde, PlaneShape
from hexkv.ports import CorruptFrame, KVLayout

TABLES = 8
"""The most that a plane has."""

_LANES = 32
"""Lanes that a table of their own is tried for: fewer can hardly pay for it."""

_ROUNDS = 2
"""How often lanes may change their table. Further rounds win in the third digit only."""


class Rans:
    """See the module."""

    name = "rans-planes/1"
    magic = b"hexkvra\x01"

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    def encode(self, plane: memoryview, place: PlaneShape) -> Sequence[memoryview] | None:
        coder = self._choice.coder
        elements = bits.words(plane, place.dtype)
        upper = coder.symbols(elements, place.dtype)
        if upper is None:
            return None
        symbols, meanings = upper[0].reshape(place.tokens, place.row), upper[1]
        seen = coder.histograms(symbols)
        alphabet = _alphabet(_together(seen, coder))
        classes, counts = _fitted(seen.take(alphabet, axis=1), coder)
        wide = np.zeros((len(counts), seen.shape[1]), np.uint32)
        wide[:, alphabet] = counts
        turns = np.zeros_like(classes)
        words, lengths, states = coder.encode(symbols, classes, turns, Tables(wide))
        pieces: list[Piece] = [
            *coder.lower(elements, place.dtype),
            bytes([len(alphabet) - 1, len(counts)]),
            meanings[alphabet],
            counts.astype(np.uint16),
            classes,
            states,
            lengths,
            words,
        ]
        return [raw(piece) for piece in pieces]

    def decode(self, block: memoryview, place: PlaneShape) -> memoryview:
        coder = self._choice.coder
        cursor = Cursor(block)
        lower = [cursor.take(np.uint8, size) for size in _sizes(place)]
        meanings, counts = _alphabet_of(cursor)
        classes = cursor.take(np.uint8, place.row)
        if classes.max() >= len(counts):
            raise CorruptFrame("a lane of a table that there is not")
        states = cursor.take(np.uint32, place.row)
        lengths = cursor.take(np.uint32, -(-place.row // GROUP))
        words = cursor.take(np.uint16, sum(lengths.tolist()))
        cursor.end()
        shape = place.tokens, place.row
        width = 8 * place.dtype.itemsize
        wide = width > 16
        into: Words = np.empty(shape, np.uint32) if wide else np.empty(shape, np.uint16)
        values = np.left_shift(meanings, width - bits.UPPER.get(place.dtype, 8), dtype=into.dtype)
        streams, turns = (words, lengths, states), np.zeros(place.row, np.uint8)
        if not coder.decode(streams, classes, turns, Tables(counts), values[None], into):
            raise CorruptFrame("a stream that does not end as it should")
        coder.join(into.reshape(-1), lower, place.dtype)
        return raw(into if place.dtype.itemsize > 1 else into.astype(np.uint8))


class RansSerde(PlaneSerde):
    """The serde. A device decodes its payloads, too, if it knows their dtype."""

    def __init__(self, choice: Choice) -> None:
        super().__init__(Rans(choice))

    def device_forms(self, layout: KVLayout) -> Sequence[PlaneForm]:
        """See :class:`hexkv.kernels.payloads.SupportsDevicePlanes`."""
        return [PlaneForm(Coding.BITS) for planes in layout.planes for _ in planes]

    def device_blocks(
        self,
        payloads: Sequence[memoryview],
        layout: KVLayout,
        tokens: Sequence[int],
        layers: range,
    ) -> Numbers:
        """See :class:`hexkv.kernels.payloads.SupportsDevicePlanes`."""
        return plane_blocks(payloads, Rans.magic, layout, tokens, layers)


def _alphabet_of(
    cursor: Cursor,
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
    """The upper bits of each symbol, and counts, ``[tables, symbols]``.

    Raises:
        CorruptFrame: there are no such.
    """
    last, many = (int(number) for number in cursor.take(np.uint8, 2))
    if not last or not 1 <= many <= TABLES:
        raise CorruptFrame("an alphabet or a number of tables that there is not")
    meanings = cursor.take(np.uint16, last + 1)
    counts = cursor.take(np.uint16, many * (last + 1)).astype(np.uint32).reshape(many, -1)
    if counts.sum(axis=1).tolist() != [TOTAL] * many or counts.max() == TOTAL:
        raise CorruptFrame("a table whose counts do not add up")
    return meanings, counts


def _sizes(place: PlaneShape) -> list[int]:
    """Bytes of the arrays of lower bits."""
    return bits.sizes(place.tokens * place.row, place.dtype)


def _together(seen: npt.NDArray[np.uint32], coder: Coder) -> npt.NDArray[np.int64]:
    """How often all lanes have each symbol, ``[1, symbols]``."""
    return coder.by_class(seen, np.zeros(len(seen), np.uint8), 1)


def _alphabet(together: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The symbols that there are, and another where there is only one: a table has two at least."""
    alphabet = np.flatnonzero(together)
    if len(alphabet) == 1:
        alphabet = np.sort(np.append(alphabet, alphabet[0] ^ 1))
    return alphabet


def _fitted(
    seen: npt.NDArray[np.uint32], coder: Coder
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """The table of each lane, and the counts of the tables: one, or as many as there may be.

    Lanes that are alike on average begin with one table, and then choose a better one.

    Args:
        seen: ``[lanes, symbols]``, how often lanes have symbols.
        coder: sums the counts.
    """
    lanes, symbols = seen.shape
    one = _together(seen, coder)
    tables = min(TABLES, lanes // _LANES)
    classes = np.zeros(lanes, np.uint8)
    if tables < 2:
        return classes, coder.counted(one)
    means = coder.weighed(seen, np.arange(symbols, dtype=np.float64)[None])[0]
    classes[means.argsort()] = np.arange(lanes) * tables // lanes
    for _ in range(_ROUNDS):
        costs = _costs(coder.by_class(seen, classes, tables))
        classes = coder.weighed(seen, costs).argmin(axis=0).astype(np.uint8)
    many = coder.by_class(seen, classes, tables)
    if _cost(one) <= _cost(many) + 16 * symbols * (tables - 1):
        return np.zeros(lanes, np.uint8), coder.counted(one)
    return classes, coder.counted(many)


def _costs(seen: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The bits of each symbol by tables of the counts *seen*; one without a count costs most."""
    shares = np.maximum(seen, 1 / TOTAL) / np.maximum(seen.sum(axis=1, keepdims=True), 1)
    return np.asarray(-np.log2(shares), np.float64)


def _cost(seen: npt.NDArray[np.int64]) -> float:
    """Bits of all symbols by the tables of their own classes."""
    return float((seen * _costs(seen)).sum())
