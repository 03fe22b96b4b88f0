"""Scaled 8-bit and 4-bit numbers, in numpy; ``compiled_lowbit`` computes the same.

Everything takes ``[..., peers]`` numbers of single precision, the last axis of which shares a
scale, and is exact about zeros: a constant or empty group has no spread to divide by.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.floats import Floats
from hexkv.kernels.coding.floats import narrowed as narrowed

INT8 = 127
INT4 = 15
FLOAT8_MOST = 448.0
"""The largest number of float8_e4m3fn (OCP 8-bit floating point, 1.0)."""

_SMALLEST_NORMAL = 2.0**-6
_SUBNORMAL = 512.0
"""Subnormal numbers of float8_e4m3fn are multiples of one part in 512."""


def peaks(values: Floats) -> Floats | None:
    """Return the largest magnitude of each group, or ``None`` if one is not finite."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.abs(values).max(axis=-1)
    return found if np.isfinite(found).all() else None


def ends(values: Floats) -> tuple[Floats, Floats] | None:
    """Return the least and the largest of each group; ``None`` if a difference is not finite.

    Zero with a minus is less than without: so they have the same bits on every machine.
    """
    bits = np.ascontiguousarray(values).view(np.int32)
    ordered = _ordered(bits)
    low = _ordered(ordered.min(axis=-1)).view(np.float32)
    high = _ordered(ordered.max(axis=-1)).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return (low, high) if np.isfinite(high - low).all() else None


def _ordered(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return integers in the order of the floats that have these *bits*; and back."""
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def transposed(values: Floats) -> Floats:
    """Return ``[columns, rows]`` of ``[rows, columns]`` *values*, in memory of their own."""
    return np.ascontiguousarray(values.T)


def to_int8(values: Floats, peaks: Floats) -> npt.NDArray[np.int8]:
    """Return *values* in units of their group's largest magnitude, *peaks*, over 127."""
    levels = np.rint(_shares(values, peaks) * np.float32(INT8))
    return np.asarray(levels, np.int8)


def from_int8(levels: npt.NDArray[np.int8], peaks: Floats) -> Floats:
    """Return the values of :func:`to_int8`, exact to half a unit."""
    shares = levels.astype(np.float32) / np.float32(INT8)
    shares *= peaks[..., None]
    return shares


def to_int4(values: Floats, low: Floats, high: Floats) -> npt.NDArray[np.uint8]:
    """Return *values* as one of 16 steps from their group's least, *low*, to its *high*."""
    spread = high - low
    spread[spread == 0] = 1
    steps = values - low[..., None]
    steps /= spread[..., None]
    steps *= np.float32(INT4)
    return np.asarray(np.rint(steps), np.uint8)


def from_int4(steps: npt.NDArray[np.uint8], low: Floats, high: Floats) -> Floats:
    """Return the values of :func:`to_int4`, exact to half a step."""
    shares = steps.astype(np.float32) / np.float32(INT4)
    # Not low + share * spread: that would round above the largest, and out of a dtype.
    values = shares * high[..., None]
    np.subtract(np.float32(1), shares, out=shares)
    shares *= low[..., None]
    values += shares
    # Not np.clip: its choice between two equal zeros is not specified.
    np.copyto(values, low[..., None], where=values < low[..., None])
    np.copyto(values, high[..., None], where=values > high[..., None])
    return values


def packed(steps: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return two of the 4-bit *steps* in a byte, the first in its low half; an odd last alone."""
    flat = steps.reshape(-1)
    pairs = np.zeros((len(flat) + 1) // 2, np.uint8)
    pairs |= flat[::2]
    pairs[: len(flat) // 2] |= flat[1::2] << 4
    return pairs


def unpacked(pairs: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8]:
    """Return the *count* steps that :func:`packed` packed."""
    steps = np.empty(2 * len(pairs), np.uint8)
    np.bitwise_and(pairs, 15, out=steps[::2])
    np.right_shift(pairs, 4, out=steps[1::2])
    return steps[:count]


def to_float8(values: Floats, peaks: Floats) -> npt.NDArray[np.uint8]:
    """Return the float8_e4m3fn bits of *values*, scaled: *peaks* become the largest number."""
    scaled = _shares(values, peaks) * np.float32(FLOAT8_MOST)
    bits = scaled.view(np.uint32)
    sign = (bits >> 24).astype(np.uint8) & 0x80
    size = np.abs(scaled)
    bits = size.view(np.uint32)
    # Three bits of fraction stay, to nearest, ties to even; exponents count from -7, not -127.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20).astype(np.int32) - (120 << 3)
    small = np.rint(size * np.float32(_SUBNORMAL)).astype(np.int32)
    return np.asarray(np.where(size < _SMALLEST_NORMAL, small, normal) | sign, np.uint8)


def from_float8(codes: npt.NDArray[np.uint8], peaks: Floats) -> Floats:
    """Return the values of :func:`to_float8`, exact to about a 16th of each number."""
    shares = _FLOAT8[codes]
    shares *= peaks[..., None]
    return shares


def _shares(values: Floats, peaks: Floats) -> Floats:
    """Return *values* as parts of *peaks*. No product is used: ``1 / peak`` may overflow."""
    divisors = np.where(peaks > 0, peaks, 1).astype(np.float32)
    with np.errstate(under="ignore"):
        return np.asarray(values / divisors[..., None], np.float32)


def _float8() -> Floats:
    """Return each of the 256 codes as a part of the largest number; both NaN as zero."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    normal = (8 + fractions) * 2.0 ** (exponents - 10)
    sizes = np.where(exponents > 0, normal, fractions / _SUBNORMAL)
    sizes = np.where(codes & 0x7F == 0x7F, 0, sizes)
    return (np.where(codes & 0x80, -sizes, sizes) / FLOAT8_MOST).astype(np.float32)


_FLOAT8 = _float8()
