"""The element types of KV as torch dtypes."""

from __future__ import annotations

import torch

from hexkv.ports import DType, LayoutMismatch

_TORCH = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT8_E4M3: torch.float8_e4m3fn,
    DType.FLOAT8_E5M2: torch.float8_e5m2,
    DType.UINT8: torch.uint8,
}
_FROM_TORCH = {native: port for port, native in _TORCH.items()}

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type of elements of each size in bytes."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return the torch dtype of *dtype*."""
    return _TORCH[dtype]


def dtype_of(dtype: torch.dtype) -> DType:
    """Return the port's dtype of a torch dtype.

    Raises:
        LayoutMismatch: KV of that type cannot be cached.
    """
    try:
        return _FROM_TORCH[dtype]
    except KeyError:
        known = ", ".join(_TORCH)
        raise LayoutMismatch(f"KV of {dtype} cannot be cached; it can be {known}") from None


def bits(dtype: DType) -> torch.dtype:
    """Return the integer type of the same size.

    KV is moved as integers: torch lacks indexing kernels for fp8 on the CPU, and no conversion may
    touch the payload of a NaN.
    """
    return INTEGERS[dtype.itemsize]
