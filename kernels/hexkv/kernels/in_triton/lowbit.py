"""Numbers of 8 bits with a scale for each token and head, as ``kernels.coding.lowbit`` has them."""

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.lowbit import INT8

_ROUNDING = 1.5 * 2**23
"""Adding it and taking it away rounds a small float to the nearest integer, ties to even."""

ROWS = 8


def to_int8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.lowbit.to_int8`; the peaks are found on the way.

    Args:
        values: ``[rows, peers]`` of any floating-point dtype, finite.

    Returns:
        ``[rows, peers]`` int8, and the largest magnitude of each row in single precision.
    """
    dense = values.contiguous()
    rows, peers = dense.shape
    levels = torch.empty((rows, peers), dtype=torch.int8, device=values.device)
    peaks = torch.zeros(rows, dtype=torch.float32, device=values.device)
    if levels.numel():
        with torch.cuda.device_of(values):
            _to_int8[(triton.cdiv(rows, ROWS),)](
                dense,
                levels,
                peaks,
                rows,
                peers,
                MOST=INT8,
                ROUNDING=_ROUNDING,
                ROWS=ROWS,
                PEERS=triton.next_power_of_2(peers),
                enable_fp_fusion=False,
            )
    return levels, peaks


def from_int8(levels: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What :func:`to_int8` was given, to half a unit, as *dtype*."""
    dense = levels.contiguous()
    rows, peers = dense.shape
    values = torch.empty((rows, peers), dtype=dtype, device=levels.device)
    if values.numel():
        with torch.cuda.device_of(levels):
            _from_int8[(triton.cdiv(rows, ROWS),)](
                dense,
                peaks,
                values,
                rows,
                peers,
                MOST=INT8,
                ROWS=ROWS,
                PEERS=triton.next_power_of_2(peers),
                enable_fp_fusion=False,
            )
    return values


@triton.jit
def _to_int8(
    values,
    levels,
    peaks,
    rows,
    peers,
    MOST: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    peer = tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    at = row.to(tl.int64)[:, None] * peers + peer[None, :]
    value = tl.load(values + at, mask=mask, other=0).to(tl.float32)
    peak = tl.max(tl.abs(value), 1)
    divisor = tl.where(peak > 0, peak, 1.0)
    # Rounded as IEEE says: an approximate quotient would sometimes be another level.
    share = tl.div_rn(value, tl.broadcast_to(divisor[:, None], (ROWS, PEERS)))
    level = (share * MOST + ROUNDING) - ROUNDING
    tl.store(levels + at, level.to(tl.int8), mask=mask)
    tl.store(peaks + row, peak, mask=row < rows)


@triton.jit
def _from_int8(
    levels,
    peaks,
    values,
    rows,
    peers,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    peer = tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    at = row.to(tl.int64)[:, None] * peers + peer[None, :]
    level = tl.load(levels + at, mask=mask, other=0).to(tl.float32)
    peak = tl.load(peaks + row, mask=row < rows, other=0)
    share = tl.div_rn(level, tl.full((ROWS, PEERS), MOST, tl.float32))
    tl.store(values + at, (share * peak[:, None]).to(values.dtype.element_ty), mask=mask)
