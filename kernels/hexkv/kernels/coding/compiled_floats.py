"""The rounding of ``floats``, compiled by numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding import floats
from hexkv.kernels.coding.floats import Floats, Words
from hexkv.kernels.coding.jit import compile_for
from hexkv.ports import DType

_HALF, _ONE, _16 = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)


def narrowed(numbers: Floats, dtype: DType) -> Words:
    """See :func:`hexkv.kernels.coding.floats.narrowed`."""
    if dtype is not DType.BFLOAT16:
        return floats.narrowed(numbers, dtype)
    rounded = np.empty(numbers.shape, np.uint16)
    flat = np.ascontiguousarray(numbers).reshape(-1).view(np.uint32)
    _bfloat16(flat, rounded.reshape(-1))
    return rounded


@compile_for("void(u4[::1], u2[::1])")
def _bfloat16(bits: npt.NDArray[np.uint32], rounded: npt.NDArray[np.uint16]) -> None:
    for at in range(len(bits)):
        even = bits[at] >> _16 & _ONE
        rounded[at] = np.uint16(np.uint32(bits[at] + _HALF + even) >> _16)
