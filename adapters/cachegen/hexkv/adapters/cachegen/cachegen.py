"""The codec ``cachegen``: few levels per token, coded with probabilities that are not sent.

After CacheGen (Liu et al., SIGCOMM 2024, arXiv 2310.07240), with changes that measured better:
no deltas between tokens, which make the spread of V larger and that of K no smaller; and
neither tables of counts in each chunk, which cost two bits an element, but Gaussians.

Each token of a plane is divided by its largest magnitude and rounded to ``2 * half + 1``
levels. The levels of one channel, a *lane*, are coded by interleaved rANS with the Gaussian
that has their spread, after its middle has been turned to their mean. A block of format 1::

    1                 half
    tokens x itemsize largest magnitudes, in the dtype of the layout
    lanes x 1         class of width, of each lane
    lanes x 1         turn, of each lane
    lanes x 4         state, of each lane
    groups x 4        words, of each 64 lanes
    ..                the words, 2 bytes each, group by group

:mod:`hexkv.kernels.coding.plain` describes how these are read. Decoding checks that the sizes add
up, and that every stream ends where and as it should; beyond that frames have a checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hexkv.kernels.coding.choosing import Choice
from hexkv.kernels.coding.floats import ROUNDING, Floats, Words, empty_bits
from hexkv.kernels.coding.pieces import Cursor, Piece
from hexkv.kernels.coding.plain import GROUP, Bytes, fitting
from hexkv.kernels.coding.tables import CLASSES, HALVES, Gaussians, tables
from hexkv.kernels.payloads import Coding, PlaneForm
from hexkv.plugins.support.payload import PlaneShape
from hexkv.ports import CorruptFrame, ErrorBound, Plane

_ARITHMETIC = 2.0**-21
"""The error that single precision may add, as a share of the largest magnitude."""


@dataclass(frozen=True, slots=True)
class Level:
    """How finely layers are quantised: *early* is for the first third of them."""

    early: int
    late: int

    def half(self, place: PlaneShape) -> int:
        """The largest level of a plane."""
        return self.early if 3 * place.layer < place.layers else self.late


LEVELS = {
    "fine": Level(31, 14),
    "default": Level(31, 7),
    "small": Level(7, 7),
    "tiny": Level(7, 3),
}
"""By name; any of them reads blocks of another one. The default is chosen by the judges of
``docs/quality.md``."""


class CacheGen:
    """See the module."""

    name = "cachegen/1"
    magic = b"hexkvcg\x01"

    def __init__(self, level: Level, choice: Choice) -> None:
        self.level = level
        self._choice = choice

    def error(self, place: PlaneShape) -> ErrorBound:
        half = self.level.half(place)
        return ErrorBound(0.5 / half + ROUNDING[place.dtype] + _ARITHMETIC)

    def encode(self, values: Floats, place: PlaneShape) -> Sequence[Piece] | None:
        coder = self._choice.coder
        half = self.level.half(place)
        quantised = coder.quantise(values, half)
        if quantised is None:
            return None
        symbols, peaks = quantised
        found = tables(half)
        sums, squares = coder.moments(symbols)
        classes, turns = fitting(sums, squares, place.tokens, found)
        words, lengths, states = coder.encode(symbols, classes, turns, found)
        scales = coder.narrowed(peaks, place.dtype)
        return [bytes([half]), scales, classes, turns, states, lengths, words]

    def decode(self, block: memoryview, place: PlaneShape) -> Words:
        cursor = Cursor(block)
        found, peaks, classes, turns = _heads(cursor, place)
        states = cursor.take(np.uint32, place.row)
        lengths = cursor.take(np.uint32, -(-place.row // GROUP))
        words = cursor.take(np.uint16, int(lengths.sum(dtype=np.uint64)))
        cursor.end()
        into = empty_bits((place.tokens, place.row), place.dtype)
        coder = self._choice.coder
        values = coder.narrowed(_values(peaks, found), place.dtype)
        streams = (words, lengths, states)
        if not coder.decode(streams, classes, turns, found, values, into):
            raise CorruptFrame("a stream that does not end as it should")
        return into

    def device_form(self, plane: Plane) -> PlaneForm:
        del plane
        return PlaneForm(Coding.LEVELS)


def _heads(cursor: Cursor, place: PlaneShape) -> tuple[Gaussians, Floats, Bytes, Bytes]:
    """The alphabet, magnitudes, classes and turns with which a block begins.

    Raises:
        CorruptFrame: there are no such.
    """
    half = int(cursor.take(np.uint8, 1)[0])
    if half not in HALVES:
        raise CorruptFrame(f"no alphabet has levels from -{half} to {half}")
    found = tables(half)
    peaks = cursor.peaks(place.dtype, place.tokens)
    classes = cursor.take(np.uint8, place.row)
    turns = cursor.take(np.uint8, place.row)
    if classes.max() >= CLASSES or turns.max() >= found.symbols:
        raise CorruptFrame("a lane of a kind that there is not")
    return found, peaks, classes, turns


def _values(peaks: Floats, found: Gaussians) -> Floats:
    """The value of each symbol of each token, twice: see ``plain.decode``."""
    levels = np.arange(-found.half, found.half + 1, dtype=np.float32) / np.float32(found.half)
    with np.errstate(under="ignore"):
        values: Floats = peaks[:, None] * np.concatenate([levels, levels])
    return values
