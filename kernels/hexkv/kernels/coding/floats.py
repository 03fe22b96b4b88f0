"""The elements of KV as single precision, and back."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hexkv.ports import DType

Floats: TypeAlias = npt.NDArray[np.float32]
Words: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

FLOATS = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
"""The dtypes that are numbers to this package. Only the engine knows the meaning of 8-bit KV."""

ROUNDING = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11, DType.FLOAT32: 2.0**-24}
"""The largest rounding error of a dtype, as a share of the number."""


def empty_bits(shape: tuple[int, int], dtype: DType) -> Words:
    """Return uninitialised memory for the bits of *dtype*'s elements."""
    return np.empty(shape, np.uint32) if dtype is DType.FLOAT32 else np.empty(shape, np.uint16)


def widened(elements: memoryview, dtype: DType) -> Floats:
    """*elements* of one of ``FLOATS`` as numbers, in memory of their own."""
    if dtype is DType.BFLOAT16:
        bits = np.frombuffer(elements, "<u2").astype(np.uint32)
        np.left_shift(bits, 16, out=bits)
        return bits.view(np.float32)
    source = "<f2" if dtype is DType.FLOAT16 else "<f4"
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        return np.frombuffer(elements, source).astype(np.float32)


def narrowed(numbers: Floats, dtype: DType) -> Words:
    """Return the bits of finite *numbers* in *dtype*, rounded to nearest, ties to even."""
    if dtype is DType.FLOAT32:
        return numbers.view(np.uint32)
    if dtype is DType.FLOAT16:
        with np.errstate(over="ignore", under="ignore"):
            return numbers.astype(np.float16).view(np.uint16)
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
