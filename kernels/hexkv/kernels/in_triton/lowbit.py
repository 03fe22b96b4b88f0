"""Numbers of 8 and 4 bits with scales on a GPU, as in ``kernels.coding.lowbit``.

Everything takes ``[rows, peers]``, the numbers of a row sharing a scale, which is computed as well.
Quotients are rounded as IEEE 754 defines: an approximate one would sometimes be another level.
"""

from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.lowbit import FLOAT8_MOST, INT4, INT8

_ROUNDING = 1.5 * 2**23
"""Adding it and taking it away rounds a small float to the nearest integer, ties to even."""

Kernel: TypeAlias = Any
"""A compiled function of Triton's, which has no type."""

TILE = 1024
"""Elements of a program, unless a row has more."""


def to_int8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.lowbit.to_int8`.

    Args:
        values: ``[rows, peers]`` of any floating-point dtype, finite.

    Returns:
        ``[rows, peers]`` int8, and the largest magnitude of each row in single precision.
    """
    return _narrowed(_to_levels, values, torch.int8, MOST=INT8, ADDED=0)


def quantise(values: torch.Tensor, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.plain.quantise`.

    Args:
        values: ``[tokens, channels]`` of any floating-point dtype, finite.
        half: the largest level, at most 127.

    Returns:
        Levels plus *half* as uint8, and the largest magnitude of each token.
    """
    return _narrowed(_to_levels, values, torch.uint8, MOST=half, ADDED=half)


def from_int8(levels: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of :func:`to_int8`, exact to half a unit, as *dtype*."""
    return _widened(_from_int8, levels, peaks, dtype, MOST=INT8)


def to_float8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.lowbit.to_float8`.

    In integers: GPUs before sm_89 have no instruction for it.

    Args:
        values: ``[rows, peers]`` of any floating-point dtype, finite.

    Returns:
        ``[rows, peers]`` uint8, the bits of float8_e4m3fn, and the largest magnitude of each row.
    """
    return _narrowed(_to_float8, values, torch.uint8, MOST=FLOAT8_MOST)


def from_float8(codes: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of :func:`to_float8`, exact to about a 16th of each number, as *dtype*."""
    return _widened(_from_float8, codes, peaks, dtype, MOST=FLOAT8_MOST)


def to_int4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.lowbit.to_int4`, and ``packed``.

    Args:
        values: ``[rows, peers]`` of any floating-point dtype; spreads are finite.

    Returns:
        Two steps in a byte, ``[(rows * peers + 1) // 2]`` uint8, and the least and the largest
        of each row in single precision.
    """
    rows, peers = values.shape
    pairs = torch.empty((values.numel() + 1) // 2, dtype=torch.uint8, device=values.device)
    low, high = torch.zeros(2, rows, dtype=torch.float32, device=values.device)
    outputs = pairs, low, high
    _run(_to_int4, (rows + 1) // 2, values, *outputs, rows, peers, MOST=INT4, ROUNDING=_ROUNDING)
    return outputs


def from_int4(
    pairs: torch.Tensor, low: torch.Tensor, high: torch.Tensor, peers: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the values of :func:`to_int4`, ``[rows, peers]``, to half a step, as *dtype*."""
    rows = len(low)
    values = torch.empty((rows, peers), dtype=dtype, device=pairs.device)
    _run(_from_int4, (rows + 1) // 2, pairs, low, high, values, rows, peers, MOST=INT4)
    return values


def _narrowed(
    kernel: Kernel, values: torch.Tensor, kind: torch.dtype, **constants: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of *kind*, and the largest magnitude of each row."""
    rows, peers = values.shape
    codes = torch.empty(values.shape, dtype=kind, device=values.device)
    peaks = torch.zeros(rows, dtype=torch.float32, device=values.device)
    _run(kernel, rows, values, codes, peaks, rows, peers, ROUNDING=_ROUNDING, **constants)
    return codes, peaks


def _widened(
    kernel: Kernel, codes: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype, **constants: float
) -> torch.Tensor:
    rows, peers = codes.shape
    values = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    _run(kernel, rows, codes, peaks, values, rows, peers, **constants)
    return values


def _run(
    kernel: Kernel,
    lines: int,
    source: torch.Tensor,
    *arguments: torch.Tensor | int,
    **constants: float,
) -> None:
    """Launch *kernel*; each of its programs has some of *lines*, which are as long as the peers."""
    if not source.numel():
        return
    wide = triton.next_power_of_2(arguments[-1])
    each = max(1, TILE // wide)
    with torch.cuda.device_of(source):
        kernel[(triton.cdiv(lines, each),)](
            source.contiguous(),
            *arguments,
            **constants,
            ROWS=each,
            PEERS=wide,
            enable_fp_fusion=False,
        )


@triton.jit
def _tile(rows, peers, ROWS: tl.constexpr, PEERS: tl.constexpr):
    """Return a program's rows, the places of their numbers, and a mask of those that exist."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    peer = tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    return row, row.to(tl.int64)[:, None] * peers + peer[None, :], mask


@triton.jit
def _shares(values, peaks, at, mask, row, rows, ROWS: tl.constexpr, PEERS: tl.constexpr):
    """Return numbers as parts of the largest magnitude in their row, which goes to *peaks*."""
    value = tl.load(values + at, mask=mask, other=0).to(tl.float32)
    peak = tl.max(tl.abs(value), 1)
    tl.store(peaks + row, peak, mask=row < rows)
    divisor = tl.where(peak > 0, peak, 1.0)
    return tl.div_rn(value, tl.broadcast_to(divisor[:, None], (ROWS, PEERS)))


@triton.jit
def _to_levels(
    values,
    levels,
    peaks,
    rows,
    peers,
    MOST: tl.constexpr,
    ADDED: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    row, at, mask = _tile(rows, peers, ROWS, PEERS)
    share = _shares(values, peaks, at, mask, row, rows, ROWS, PEERS)
    level = (share * MOST + ROUNDING) - ROUNDING
    tl.store(levels + at, (level.to(tl.int32) + ADDED).to(levels.dtype.element_ty), mask=mask)


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
    row, at, mask = _tile(rows, peers, ROWS, PEERS)
    level = tl.load(levels + at, mask=mask, other=0).to(tl.float32)
    peak = tl.load(peaks + row, mask=row < rows, other=0)
    share = tl.div_rn(level, tl.full((ROWS, PEERS), MOST, tl.float32))
    tl.store(values + at, (share * peak[:, None]).to(values.dtype.element_ty), mask=mask)


@triton.jit
def _to_float8(
    values,
    codes,
    peaks,
    rows,
    peers,
    MOST: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    row, at, mask = _tile(rows, peers, ROWS, PEERS)
    scaled = _shares(values, peaks, at, mask, row, rows, ROWS, PEERS) * MOST
    bits = scaled.to(tl.int32, bitcast=True)
    sign, size = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    # Three bits of fraction stay, to nearest, ties to even; exponents count from -7, not -127.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Numbers below 2**-6 are multiples of 2**-9.
    small = ((tl.abs(scaled) * 512 + ROUNDING) - ROUNDING).to(tl.int32)
    code = tl.where(size < (121 << 23), small, normal) | sign
    tl.store(codes + at, code.to(tl.uint8), mask=mask)


@triton.jit
def float8_share(code, MOST: tl.constexpr, ROWS: tl.constexpr, PEERS: tl.constexpr) -> tl.tensor:
    """Return ``[ROWS, PEERS]`` codes of float8_e4m3fn as parts of the largest number."""
    size = code & 0x7F
    normal = ((size + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    number = tl.where(size < 8, size.to(tl.float32) * (1.0 / 512), normal)
    number = tl.where(size == 0x7F, 0.0, number)  # NaN, which no encoder writes
    share = tl.div_rn(number, tl.full((ROWS, PEERS), MOST, tl.float32))
    # Triton compiles -x to 0 - x, which is +0.0 for +0.0: the product has the sign of its factor.
    return share * tl.where(code < 0x80, 1.0, -1.0)


@triton.jit
def _from_float8(
    codes,
    peaks,
    values,
    rows,
    peers,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    row, at, mask = _tile(rows, peers, ROWS, PEERS)
    code = tl.load(codes + at, mask=mask, other=0).to(tl.int32)
    share = float8_share(code, MOST, ROWS, PEERS)
    peak = tl.load(peaks + row, mask=row < rows, other=0)
    tl.store(values + at, (share * peak[:, None]).to(values.dtype.element_ty), mask=mask)


# Two steps share a byte, and where rows are odd, so do two rows. Two rows together are always
# whole bytes, as many as a row has peers: these are a line of a tile in the next two kernels.


@triton.jit
def _to_int4(
    values,
    pairs,
    lows,
    highs,
    rows,
    peers,
    MOST: tl.constexpr,
    ROUNDING: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    byte = tl.arange(0, PEERS)[None, :]
    both = tl.zeros((ROWS, PEERS), tl.int32)
    for second in tl.static_range(2):
        row = 2 * line + second
        peer = 2 * byte - second * peers
        first = values + row * peers + peer
        one = (row < rows) & (peer >= 0) & (peer < peers)
        other = (row < rows) & (peer >= -1) & (peer < peers - 1)
        x = tl.load(first, mask=one, other=0).to(tl.float32)
        y = tl.load(first + 1, mask=other, other=0).to(tl.float32)
        least, most = float("inf"), float("-inf")
        low = tl.minimum(tl.where(one, x, least), tl.where(other, y, least))
        high = tl.maximum(tl.where(one, x, most), tl.where(other, y, most))
        there = 2 * tl.program_id(0) * ROWS + 2 * tl.arange(0, ROWS) + second
        low = tl.where(there < rows, tl.min(low, 1), 0.0)
        high = tl.where(there < rows, tl.max(high, 1), 0.0)
        tl.store(lows + there, low, mask=there < rows)
        tl.store(highs + there, high, mask=there < rows)
        spread = tl.where(high - low == 0, 1.0, high - low)
        spread = tl.broadcast_to(spread[:, None], (ROWS, PEERS))
        low = low[:, None]
        x = tl.div_rn(tl.where(one, x, low) - low, spread) * MOST
        y = tl.div_rn(tl.where(other, y, low) - low, spread) * MOST
        both |= ((x + ROUNDING) - ROUNDING).to(tl.int32)
        both |= ((y + ROUNDING) - ROUNDING).to(tl.int32) << 4
    mask = (byte < peers) & (2 * line + (2 * byte >= peers).to(tl.int64) < rows)
    tl.store(pairs + line * peers + byte, both.to(tl.uint8), mask=mask)


@triton.jit
def int4_number(
    step, low, high, MOST: tl.constexpr, ROWS: tl.constexpr, PEERS: tl.constexpr
) -> tl.tensor:
    """Return the numbers of ``[ROWS, PEERS]`` steps from *low* to *high*."""
    share = tl.div_rn(step.to(tl.float32), tl.full((ROWS, PEERS), MOST, tl.float32))
    value = share * high + (1.0 - share) * low
    # Of two equal zeros, keep the one that was computed: so no minimum and maximum.
    value = tl.where(value < low, low, value)
    return tl.where(value > high, high, value)


@triton.jit
def _from_int4(
    pairs,
    lows,
    highs,
    values,
    rows,
    peers,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    byte = tl.arange(0, PEERS)[None, :]
    at = line * peers + byte
    mask = (byte < peers) & (2 * line + (2 * byte >= peers).to(tl.int64) < rows)
    both = tl.load(pairs + at, mask=mask, other=0).to(tl.int32)
    for odd in tl.static_range(2):
        row = 2 * line + (2 * byte + odd >= peers).to(tl.int64)
        mask = (byte < peers) & (row < rows)
        low = tl.load(lows + row, mask=mask, other=0)
        high = tl.load(highs + row, mask=mask, other=0)
        value = int4_number((both >> (4 * odd)) & 15, low, high, MOST, ROWS, PEERS)
        tl.store(values + 2 * at + odd, value.to(values.dtype.element_ty), mask=mask)
