"""The functions of ``bits``, compiled by numba for bfloat16."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding import bits
from hexkv.kernels.coding.bits import Bytes, Words
from hexkv.kernels.coding.jit import compile_for
from hexkv.ports import DType

_SEVEN, _EIGHTH, _SIGN = np.uint16(0x7F), np.uint16(0x80), np.uint16(0x80)
_7, _8 = np.uint16(7), np.uint16(8)


def symbols(elements: Words, dtype: DType) -> tuple[Bytes, npt.NDArray[np.uint16]] | None:
    """See :func:`hexkv.kernels.coding.bits.symbols`."""
    if not _known(elements, dtype):
        return bits.symbols(elements, dtype)
    found = np.empty(len(elements), np.uint8)
    _exponents(elements, found)
    least = bits.least_of(found)
    if least is None:
        return None
    _symbols(elements, np.uint8(least), found)
    return found, bits.meanings(least)


def lower(elements: Words, dtype: DType) -> list[Bytes]:
    """See :func:`hexkv.kernels.coding.bits.lower`."""
    if not _known(elements, dtype) or len(elements) % 8:
        return bits.lower(elements, dtype)
    packed = np.empty((7, len(elements) // 8), np.uint8)
    _sevens(elements, packed)
    return [packed.reshape(-1)]


def join(upper: Words, planes: list[Bytes], dtype: DType) -> None:
    """See :func:`hexkv.kernels.coding.bits.join`."""
    if not _known(upper, dtype) or len(upper) % 8:
        bits.join(upper, planes, dtype)
    else:
        _join(upper, planes[0].reshape(7, -1))


def _known(elements: Words, dtype: DType) -> TypeGuard[npt.NDArray[np.uint16]]:
    # A payload's chunk may begin at any byte, and numba reads words where they are aligned.
    return dtype is DType.BFLOAT16 and elements.flags.aligned


@compile_for("void(Array(u2, 1, 'C', True), u1[::1])")
def _exponents(elements: npt.NDArray[np.uint16], found: Bytes) -> None:
    for at in range(len(elements)):
        found[at] = np.uint8(elements[at] >> _7)


@compile_for("void(Array(u2, 1, 'C', True), u1, u1[::1])")
def _symbols(elements: npt.NDArray[np.uint16], least: np.uint8, found: Bytes) -> None:
    for at in range(len(elements)):
        exponent = max(least, found[at])
        found[at] = np.uint8(exponent - least) | np.uint8(elements[at] >> _8 & _SIGN)


@compile_for("void(Array(u2, 1, 'C', True), u1[:, ::1])")
def _sevens(elements: npt.NDArray[np.uint16], packed: Bytes) -> None:
    share = packed.shape[1]
    for row in range(7):
        up = np.uint16(7 - row)
        for at in range(share):
            last = elements[7 * share + at]
            packed[row, at] = np.uint8(elements[row * share + at] & _SEVEN | (last << up) & _EIGHTH)


@compile_for("void(u2[::1], u1[:, ::1])")
def _join(upper: npt.NDArray[np.uint16], packed: Bytes) -> None:
    share = packed.shape[1]
    for row in range(7):
        for at in range(share):
            upper[row * share + at] |= np.uint16(packed[row, at] & _SEVEN)
    for at in range(share):
        last = np.uint16(0)
        for row in range(7):
            last |= np.uint16(packed[row, at] >> _7) << np.uint16(row)
        upper[7 * share + at] |= last
