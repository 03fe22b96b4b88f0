"""The codecs ``int8``, ``int4`` and ``fp8``: each element by itself in 8 or 4 bits, and scales.

Faster than an entropy coder and less than half as small. Scales are elements, of the dtype
of the layout: a group's largest magnitude, or its least and its largest number::

    int8:  scales [tokens, heads]; numbers [tokens, heads, width]
    fp8:   scales [channels]; numbers [channels, tokens]
    int4:  least, then largest [groups]; numbers [groups, peers], two in a byte

The groups of ``int4`` are the heads of each token; for K, whose channels differ more than
its tokens, they are 64 tokens of each channel (after KIVI, arXiv 2402.02750).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding import lowbit
from hexkv.kernels.coding.floats import ROUNDING, Floats, Words, narrowed
from hexkv.kernels.coding.pieces import Cursor, Piece
from hexkv.plugins.payload import Place
from hexkv.ports.serde import ErrorBound, ScaleGroup

_ARITHMETIC = 2.0**-21
_TOKENS = 64
_BY_CHANNEL = ("k", "rope")
"""Planes whose channels differ more than their tokens."""


class Int8:
    """One scale per head and token."""

    name = "int8/1"
    magic = b"hexkvi8\x01"

    def error(self, place: Place) -> ErrorBound:
        return ErrorBound(0.5 / lowbit.INT8 + ROUNDING[place.dtype] + _ARITHMETIC, ScaleGroup.HEAD)

    def encode(self, values: Floats, place: Place) -> Sequence[Piece] | None:
        heads = _heads(values, place)
        peaks = _peaks(heads)
        if peaks is None:
            return None
        return [narrowed(peaks, place.dtype), lowbit.to_int8(heads, peaks)]

    def decode(self, block: memoryview, place: Place) -> Words:
        cursor = Cursor(block)
        peaks = cursor.peaks(place.dtype, place.tokens * place.plane.heads)
        levels = cursor.take(np.int8, place.tokens * place.row)
        cursor.end()
        heads = levels.reshape(-1, place.plane.width)
        return _rows(lowbit.from_int8(heads, peaks), place)


class Float8:
    """One scale per channel: float8_e4m3fn has four bits of exponent, and channels differ."""

    name = "fp8/1"
    magic = b"hexkvf8\x01"

    def error(self, place: Place) -> ErrorBound:
        # From 256 to 448, the largest, numbers are 32 apart.
        share = 16 / lowbit.FLOAT8_MOST
        return ErrorBound(share + ROUNDING[place.dtype] + _ARITHMETIC, ScaleGroup.CHANNEL)

    def encode(self, values: Floats, place: Place) -> Sequence[Piece] | None:
        channels = values.T
        peaks = _peaks(channels)
        if peaks is None:
            return None
        return [narrowed(peaks, place.dtype), lowbit.to_float8(channels, peaks)]

    def decode(self, block: memoryview, place: Place) -> Words:
        cursor = Cursor(block)
        peaks = cursor.peaks(place.dtype, place.row)
        codes = cursor.take(np.uint8, place.tokens * place.row)
        cursor.end()
        channels = lowbit.from_float8(codes.reshape(place.row, place.tokens), peaks)
        return _rows(channels.T, place)


class Int4:
    """Sixteen steps from the least to the largest of each group."""

    name = "int4/1"
    magic = b"hexkvi4\x01"

    def error(self, place: Place) -> ErrorBound:
        # Half a step, and all steps together are two magnitudes at most.
        share = 1 / lowbit.INT4 + ROUNDING[place.dtype] + _ARITHMETIC
        return ErrorBound(share, ScaleGroup.CHANNEL if _by_channel(place) else ScaleGroup.HEAD)

    def encode(self, values: Floats, place: Place) -> Sequence[Piece] | None:
        least: list[Words] = []
        largest: list[Words] = []
        steps: list[npt.NDArray[np.uint8]] = []
        for part in _parts(values, place):
            low, high = part.min(axis=-1), part.max(axis=-1)
            with np.errstate(over="ignore", invalid="ignore"):
                if not np.isfinite(high - low).all():
                    return None
            least.append(narrowed(low, place.dtype))
            largest.append(narrowed(high, place.dtype))
            steps.append(lowbit.to_int4(part, low, high).reshape(-1))
        return [*least, *largest, lowbit.packed(np.concatenate(steps))]

    def decode(self, block: memoryview, place: Place) -> Words:
        into = np.empty((place.tokens, place.row), np.float32)
        parts = _parts(into, place)
        sizes = [part.size // part.shape[-1] for part in parts]
        cursor = Cursor(block)
        least = cursor.peaks(place.dtype, sum(sizes))
        largest = cursor.peaks(place.dtype, sum(sizes))
        pairs = cursor.take(np.uint8, (into.size + 1) // 2)
        cursor.end()
        steps = lowbit.unpacked(pairs, into.size)
        group = element = 0
        for part, size in zip(parts, sizes, strict=True):
            low = least[group : group + size].reshape(part.shape[:-1])
            high = largest[group : group + size].reshape(part.shape[:-1])
            mine = steps[element : element + part.size].reshape(part.shape)
            part[...] = lowbit.from_int4(mine, low, high)
            group += size
            element += part.size
        return narrowed(into, place.dtype)


def _by_channel(place: Place) -> bool:
    return place.plane.name in _BY_CHANNEL


def _parts(values: Floats, place: Place) -> list[Floats]:
    """Views of *values*, ``[tokens, row]``, with the peers of ``int4`` on the last axis."""
    if not _by_channel(place):
        return [_heads(values, place)]
    return [values[at : at + _TOKENS].T for at in range(0, place.tokens, _TOKENS)]


def _heads(values: Floats, place: Place) -> Floats:
    return values.reshape(place.tokens, place.plane.heads, place.plane.width)


def _peaks(values: Floats) -> Floats | None:
    """The largest magnitudes on the last axis, or ``None`` if one is not finite."""
    with np.errstate(invalid="ignore"):
        peaks: Floats = np.abs(values).max(axis=-1)
    return peaks if np.isfinite(peaks).all() else None


def _rows(values: Floats, place: Place) -> Words:
    return narrowed(np.ascontiguousarray(values).reshape(place.tokens, place.row), place.dtype)
