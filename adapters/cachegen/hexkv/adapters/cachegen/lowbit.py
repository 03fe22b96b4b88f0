"""The codecs ``int8``, ``int4`` and ``fp8``: each element alone in 8 or 4 bits, and scales.

Faster than an entropy coder and less than half as small. Scales are elements, of the dtype
of the layout: a group's largest magnitude, or its least and its largest number::

    int8:  scales [tokens, heads]; numbers [tokens, heads, width]
    fp8:   scales [channels]; numbers [channels, tokens]
    int4:  least, then largest [groups]; numbers [groups, peers], two in a byte

The groups of ``int4`` are the heads of each token; for K, whose channels differ more than
its tokens, they are 64 tokens of each channel (after KIVI, arXiv 2402.02750).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hexkv.adapters.cachegen.serde import NumberCodec
from hexkv.kernels.coding import lowbit
from hexkv.kernels.coding.choosing import LowBit, LowBitChoice
from hexkv.kernels.coding.floats import ROUNDING, Floats, Words
from hexkv.kernels.coding.pieces import Cursor, Piece
from hexkv.kernels.payloads import Coding, PlaneForm
from hexkv.plugins.support.payload import PlaneShape
from hexkv.ports import ErrorBound, Plane, ScaleGroup

_ARITHMETIC = 2.0**-21
_TOKENS = 64
_BY_CHANNEL = ("k", "rope")
"""Planes whose channels differ more than their tokens."""


class _Codec:
    """Codes with the compiled coder, as soon as it is compiled."""

    def __init__(self, choice: LowBitChoice) -> None:
        self._choice = choice


class Int8(_Codec):
    """One scale per head and token."""

    name = "int8/1"
    magic = b"hexkvi8\x01"

    def error(self, place: PlaneShape) -> ErrorBound:
        return ErrorBound(0.5 / lowbit.INT8 + ROUNDING[place.dtype] + _ARITHMETIC, ScaleGroup.HEAD)

    def encode(self, values: Floats, place: PlaneShape) -> Sequence[Piece] | None:
        coder = self._choice.coder
        heads = values.reshape(-1, place.plane.width)
        peaks = coder.peaks(heads)
        if peaks is None:
            return None
        return [coder.narrowed(peaks, place.dtype), coder.to_int8(heads, peaks)]

    def decode(self, block: memoryview, place: PlaneShape) -> Words:
        coder = self._choice.coder
        cursor = Cursor(block)
        peaks = cursor.peaks(place.dtype, place.tokens * place.plane.heads)
        levels = cursor.take(np.int8, place.tokens * place.row)
        cursor.end()
        heads = levels.reshape(-1, place.plane.width)
        return _bits(coder, coder.from_int8(heads, peaks), place)

    def device_form(self, plane: Plane) -> PlaneForm:
        del plane
        return PlaneForm(Coding.INT8)


class Float8(_Codec):
    """One scale per channel: float8_e4m3fn has four bits of exponent, and channels differ."""

    name = "fp8/1"
    magic = b"hexkvf8\x01"

    def error(self, place: PlaneShape) -> ErrorBound:
        # From 256 to 448, the largest, numbers are 32 apart.
        share = 16 / lowbit.FLOAT8_MOST
        return ErrorBound(share + ROUNDING[place.dtype] + _ARITHMETIC, ScaleGroup.CHANNEL)

    def encode(self, values: Floats, place: PlaneShape) -> Sequence[Piece] | None:
        coder = self._choice.coder
        channels = coder.transposed(values)
        peaks = coder.peaks(channels)
        if peaks is None:
            return None
        return [coder.narrowed(peaks, place.dtype), coder.to_float8(channels, peaks)]

    def decode(self, block: memoryview, place: PlaneShape) -> Words:
        coder = self._choice.coder
        cursor = Cursor(block)
        peaks = cursor.peaks(place.dtype, place.row)
        codes = cursor.take(np.uint8, place.tokens * place.row)
        cursor.end()
        channels = coder.from_float8(codes.reshape(place.row, place.tokens), peaks)
        return _bits(coder, coder.transposed(channels), place)

    def device_form(self, plane: Plane) -> PlaneForm:
        del plane
        return PlaneForm(Coding.FLOAT8)


class Int4(_Codec):
    """Sixteen steps from the least to the largest of each group."""

    name = "int4/1"
    magic = b"hexkvi4\x01"

    def error(self, place: PlaneShape) -> ErrorBound:
        # Half a step, and all steps together are two magnitudes at most.
        share = 1 / lowbit.INT4 + ROUNDING[place.dtype] + _ARITHMETIC
        return ErrorBound(share, ScaleGroup.CHANNEL if _by_channel(place) else ScaleGroup.HEAD)

    def encode(self, values: Floats, place: PlaneShape) -> Sequence[Piece] | None:
        coder = self._choice.coder
        least: list[Words] = []
        largest: list[Words] = []
        steps: list[npt.NDArray[np.uint8]] = []
        for part in _parts(coder, values, place):
            ends = coder.ends(part)
            if ends is None:
                return None
            least.append(coder.narrowed(ends[0], place.dtype))
            largest.append(coder.narrowed(ends[1], place.dtype))
            steps.append(coder.to_int4(part, *ends).reshape(-1))
        return [*least, *largest, coder.packed(np.concatenate(steps))]

    def decode(self, block: memoryview, place: PlaneShape) -> Words:
        coder = self._choice.coder
        shapes = _shapes(place)
        groups = sum(count for count, _ in shapes)
        cursor = Cursor(block)
        least = cursor.peaks(place.dtype, groups)
        largest = cursor.peaks(place.dtype, groups)
        pairs = cursor.take(np.uint8, (place.tokens * place.row + 1) // 2)
        cursor.end()
        steps = coder.unpacked(pairs, place.tokens * place.row)
        parts = []
        group = element = 0
        for count, peers in shapes:
            its_steps = steps[element : element + count * peers].reshape(count, peers)
            ends = least[group : group + count], largest[group : group + count]
            part = coder.from_int4(its_steps, *ends)
            parts.append(coder.transposed(part) if _by_channel(place) else part)
            group += count
            element += count * peers
        return _bits(coder, np.concatenate(parts), place)

    def device_form(self, plane: Plane) -> PlaneForm:
        return PlaneForm(Coding.INT4, _TOKENS if plane.name in _BY_CHANNEL else 0)


CODECS: dict[str, Callable[[LowBitChoice], NumberCodec]] = {
    "int8": Int8,
    "int4": Int4,
    "fp8": Float8,
}
"""By the names that configurations have for them."""


def _by_channel(place: PlaneShape) -> bool:
    return place.plane.name in _BY_CHANNEL


def _shapes(place: PlaneShape) -> list[tuple[int, int]]:
    """Groups, and peers in each, of the parts of a plane in ``int4``."""
    if not _by_channel(place):
        return [(place.tokens * place.plane.heads, place.plane.width)]
    starts = range(0, place.tokens, _TOKENS)
    return [(place.row, min(_TOKENS, place.tokens - start)) for start in starts]


def _parts(coder: LowBit, values: Floats, place: PlaneShape) -> Sequence[Floats]:
    """*values*, ``[tokens, row]``, as ``[groups, peers]``."""
    if not _by_channel(place):
        return [values.reshape(-1, place.plane.width)]
    starts = range(0, place.tokens, _TOKENS)
    return [coder.transposed(values[start : start + _TOKENS]) for start in starts]


def _bits(coder: LowBit, values: Floats, place: PlaneShape) -> Words:
    return coder.narrowed(values, place.dtype).reshape(place.tokens, place.row)
