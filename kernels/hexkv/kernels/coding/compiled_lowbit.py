"""The functions of ``lowbit``, compiled by numba: the same bits, for arrays of two axes.

All loops go along the axis that is contiguous in memory and have no order, so LLVM turns them into
the vector code of the processor at hand. All indices come from shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types

from hexkv.kernels.coding.compiled_floats import narrowed as narrowed
from hexkv.kernels.coding.floats import Floats
from hexkv.kernels.coding.jit import compile_for, inline
from hexkv.kernels.coding.lowbit import FLOAT8_MOST, INT4, INT8

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
_TILE = 8
"""Rows that are transposed together: more, a power of two apart, would share too few places
of a processor's first cache."""

_I1, _20, _24 = np.int32(1), np.int32(20), np.int32(24)
_HALF, _BIAS, _SIGN = np.int32(0x7FFFF), np.int32(120 << 3), np.int32(0x80)
_SMALLEST = np.int32(0x3C800000)
"""The bits of 2**-6, the smallest normal number of float8_e4m3fn."""

_SUBNORMAL = np.float32(512)
_0, _1 = np.float32(0), np.float32(1)
_INT8, _INT4, _MOST = np.float32(INT8), np.float32(INT4), np.float32(FLOAT8_MOST)


@inline
def _bits(_: Any, __: Any) -> Any:
    """Return the bits of a number of single precision."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@inline
def _number(_: Any, __: Any) -> Any:
    """Return the number of single precision that has the bits of an int32."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


def peaks(values: Floats) -> Floats | None:
    """See :func:`hexkv.kernels.coding.lowbit.peaks`."""
    found = np.empty(len(values), np.float32)
    return found if _peaks(np.ascontiguousarray(values), found) else None


@compile_for("boolean(f4[:, ::1], f4[::1])")
def _peaks(values: Floats, found: Floats) -> bool:
    groups, peers = values.shape
    for group in range(groups):
        # Magnitudes of floats are in the order of their bits, with NaN behind infinity.
        peak = np.int32(0)
        for peer in range(peers):
            peak = max(peak, _bits(values[group, peer]) & _MAGNITUDE)
        if peak >= _INFINITY:
            return False
        found[group] = _number(peak)
    return True


def ends(values: Floats) -> tuple[Floats, Floats] | None:
    """See :func:`hexkv.kernels.coding.lowbit.ends`."""
    low, high = np.empty(len(values), np.float32), np.empty(len(values), np.float32)
    return (low, high) if _ends(np.ascontiguousarray(values), low, high) else None


@compile_for("boolean(f4[:, ::1], f4[::1], f4[::1])")
def _ends(values: Floats, low: Floats, high: Floats) -> bool:
    groups, peers = values.shape
    for group in range(groups):
        least, most = _MAGNITUDE, ~_MAGNITUDE
        for peer in range(peers):
            bits = _bits(values[group, peer])
            ordered = np.int32(bits ^ (bits >> 31 & _MAGNITUDE))
            least, most = min(least, ordered), max(most, ordered)
        # Infinities and NaN are the outermost, and their difference is one or the other.
        low[group] = _number(np.int32(least ^ (least >> 31 & _MAGNITUDE)))
        high[group] = _number(np.int32(most ^ (most >> 31 & _MAGNITUDE)))
        if not np.isfinite(high[group] - low[group]):
            return False
    return True


def to_int8(values: Floats, peaks: Floats) -> npt.NDArray[np.int8]:
    """See :func:`hexkv.kernels.coding.lowbit.to_int8`."""
    levels = np.empty(values.shape, np.int8)
    _to_int8(np.ascontiguousarray(values), peaks, levels)
    return levels


@compile_for("void(f4[:, ::1], f4[::1], i1[:, ::1])")
def _to_int8(values: Floats, peaks: Floats, levels: npt.NDArray[np.int8]) -> None:
    groups, peers = values.shape
    for group in range(groups):
        divisor = peaks[group] if peaks[group] > _0 else _1
        for peer in range(peers):
            level = np.rint(values[group, peer] / divisor * _INT8)
            levels[group, peer] = np.int8(np.int32(level))


def from_int8(levels: npt.NDArray[np.int8], peaks: Floats) -> Floats:
    """See :func:`hexkv.kernels.coding.lowbit.from_int8`."""
    values = np.empty(levels.shape, np.float32)
    _from_int8(levels, peaks, values)
    return values


@compile_for("void(i1[:, ::1], f4[::1], f4[:, ::1])")
def _from_int8(levels: npt.NDArray[np.int8], peaks: Floats, values: Floats) -> None:
    groups, peers = levels.shape
    for group in range(groups):
        for peer in range(peers):
            values[group, peer] = np.float32(levels[group, peer]) / _INT8 * peaks[group]


def to_int4(values: Floats, low: Floats, high: Floats) -> npt.NDArray[np.uint8]:
    """See :func:`hexkv.kernels.coding.lowbit.to_int4`."""
    steps = np.empty(values.shape, np.uint8)
    _to_int4(np.ascontiguousarray(values), low, high, steps)
    return steps


@compile_for("void(f4[:, ::1], f4[::1], f4[::1], u1[:, ::1])")
def _to_int4(values: Floats, low: Floats, high: Floats, steps: npt.NDArray[np.uint8]) -> None:
    groups, peers = values.shape
    for group in range(groups):
        spread = high[group] - low[group]
        spread = spread if spread != _0 else _1
        for peer in range(peers):
            step = np.rint((values[group, peer] - low[group]) / spread * _INT4)
            steps[group, peer] = np.uint8(np.int32(step))


def from_int4(steps: npt.NDArray[np.uint8], low: Floats, high: Floats) -> Floats:
    """See :func:`hexkv.kernels.coding.lowbit.from_int4`."""
    values = np.empty(steps.shape, np.float32)
    _from_int4(steps, low, high, values)
    return values


@compile_for("void(u1[:, ::1], f4[::1], f4[::1], f4[:, ::1])")
def _from_int4(steps: npt.NDArray[np.uint8], low: Floats, high: Floats, values: Floats) -> None:
    groups, peers = steps.shape
    for group in range(groups):
        least, most = low[group], high[group]
        for peer in range(peers):
            share = np.float32(steps[group, peer]) / _INT4
            value = share * most + (_1 - share) * least
            # Of two equal zeros, keep the one that was computed.
            value = least if value < least else value  # noqa: FURB136
            values[group, peer] = most if value > most else value  # noqa: FURB136


def packed(steps: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """See :func:`hexkv.kernels.coding.lowbit.packed`."""
    flat = steps.reshape(-1)
    pairs = np.empty((len(flat) + 1) // 2, np.uint8)
    _packed(flat, pairs)
    return pairs


@compile_for("void(u1[::1], u1[::1])")
def _packed(flat: npt.NDArray[np.uint8], pairs: npt.NDArray[np.uint8]) -> None:
    for pair in range(len(flat) // 2):
        pairs[pair] = flat[2 * pair] | flat[2 * pair + 1] << 4
    if len(flat) % 2:
        pairs[-1] = flat[-1]


def unpacked(pairs: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8]:
    """See :func:`hexkv.kernels.coding.lowbit.unpacked`."""
    steps = np.empty(2 * len(pairs), np.uint8)
    _unpacked(pairs, steps)
    return steps[:count]


@compile_for("void(u1[::1], u1[::1])")
def _unpacked(pairs: npt.NDArray[np.uint8], steps: npt.NDArray[np.uint8]) -> None:
    for pair in range(len(pairs)):
        steps[2 * pair] = pairs[pair] & 15
        steps[2 * pair + 1] = pairs[pair] >> 4


def to_float8(values: Floats, peaks: Floats) -> npt.NDArray[np.uint8]:
    """See :func:`hexkv.kernels.coding.lowbit.to_float8`."""
    codes = np.empty(values.shape, np.uint8)
    _to_float8(np.ascontiguousarray(values), peaks, codes)
    return codes


@compile_for("void(f4[:, ::1], f4[::1], u1[:, ::1])")
def _to_float8(values: Floats, peaks: Floats, codes: npt.NDArray[np.uint8]) -> None:
    groups, peers = values.shape
    for group in range(groups):
        divisor = peaks[group] if peaks[group] > _0 else _1
        for peer in range(peers):
            scaled = values[group, peer] / divisor * _MOST
            bits = _bits(scaled)
            size = np.int32(bits & _MAGNITUDE)
            even = np.int32(np.int32(size >> _20) & _I1)
            normal = np.int32(np.int32(np.int32(size + _HALF + even) >> _20) - _BIAS)
            small = np.int32(np.rint(abs(scaled) * _SUBNORMAL))
            code = normal if size >= _SMALLEST else small
            codes[group, peer] = np.uint8(np.int32(code | np.int32(np.int32(bits >> _24) & _SIGN)))


def from_float8(codes: npt.NDArray[np.uint8], peaks: Floats) -> Floats:
    """See :func:`hexkv.kernels.coding.lowbit.from_float8`."""
    values = np.empty(codes.shape, np.float32)
    _from_float8(codes, peaks, values)
    return values


@compile_for("void(u1[:, ::1], f4[::1], f4[:, ::1])")
def _from_float8(codes: npt.NDArray[np.uint8], peaks: Floats, values: Floats) -> None:
    groups, peers = codes.shape
    for group in range(groups):
        for peer in range(peers):
            code = np.int32(codes[group, peer])
            size = np.int32(code & 0x7F)
            normal = _number(np.int32((size << 20) + np.int32(960 << 20)))
            number = normal if size >= 8 else np.float32(size) / np.float32(512)
            number = number if size != 0x7F else _0
            share = _bits(number / _MOST) | np.int32((code & 0x80) << 24)
            values[group, peer] = _number(np.int32(share)) * peaks[group]


def transposed(values: Floats) -> Floats:
    """See :func:`hexkv.kernels.coding.lowbit.transposed`."""
    turned = np.empty(values.shape[::-1], np.float32)
    _transposed(values, turned)
    return turned


@compile_for("void(f4[:, ::1], f4[:, ::1])")
def _transposed(values: Floats, turned: Floats) -> None:
    rows, columns = values.shape
    whole = rows - rows % _TILE
    for row in range(0, whole, _TILE):
        for column in range(columns):
            for place in range(_TILE):
                turned[column, row + place] = values[row + place, column]
    for row in range(whole, rows):
        for column in range(columns):
            turned[column, row] = values[row, column]
