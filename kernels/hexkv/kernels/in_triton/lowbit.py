"""Numbers of 8 and 4 bits with scales on a GPU, as ``kernels.coding.lowbit`` has them.

Everything takes ``[rows, peers]``, the numbers of a row sharing a scale, which is found on the way.
Quotients are rounded as IEEE says: an approximate one would sometimes be another level.
"""

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.lowbit import FLOAT8_MOST, INT4, INT8

_ROUNDING = 1.5 * 2**23
"""Adding it and taking it away rounds a small float to the nearest integer, ties to even."""

TILE = 1024
"""Elements of a program, unless a row has more."""


def to_int8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.lowbit.to_int8`.

    Args:
        values: ``[rows, peers]`` of any floating-point dtype, finite.

    Returns:
        ``[rows, peers]`` int8, and the largest magnitude of each row in single precision.
    """
    return _levels(values, torch.int8, INT8, 0)


def quantise(values: torch.Tensor, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.plain.quantise`.

    Args:
        values: ``[tokens, channels]`` of any floating-point dtype, finite.
        half: the largest level, at most 127.

    Returns:
        Levels plus *half* as uint8, and the largest magnitude of each token.
    """
    return _levels(values, torch.uint8, half, half)


def from_int8(levels: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What :func:`to_int8` was given, to half a unit, as *dtype*."""
    dense = levels.contiguous()
    values = torch.empty(levels.shape, dtype=dtype, device=levels.device)
    if values.numel():
        grid, tile = _tiles(*levels.shape)
        with torch.cuda.device_of(levels):
            _from_int8[grid](
                dense, peaks, values, *levels.shape, MOST=INT8, **tile, enable_fp_fusion=False
            )
    return values


def to_float8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.lowbit.to_float8`.

    In integers: GPUs before sm_89 have no instruction for it.

    Args:
        values: ``[rows, peers]`` of any floating-point dtype, finite.

    Returns:
        ``[rows, peers]`` uint8, the bits of float8_e4m3fn, and the largest magnitude of each row.
    """
    dense = values.contiguous()
    codes = torch.empty(values.shape, dtype=torch.uint8, device=values.device)
    peaks = torch.zeros(len(values), dtype=torch.float32, device=values.device)
    if codes.numel():
        grid, tile = _tiles(*values.shape)
        with torch.cuda.device_of(values):
            _to_float8[grid](
                dense,
                codes,
                peaks,
                *values.shape,
                MOST=FLOAT8_MOST,
                ROUNDING=_ROUNDING,
                **tile,
                enable_fp_fusion=False,
            )
    return codes, peaks


def from_float8(codes: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What :func:`to_float8` was given, to a 16th of each number or so, as *dtype*."""
    dense = codes.contiguous()
    values = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    if values.numel():
        grid, tile = _tiles(*codes.shape)
        with torch.cuda.device_of(codes):
            _from_float8[grid](
                dense, peaks, values, *codes.shape, MOST=FLOAT8_MOST, **tile, enable_fp_fusion=False
            )
    return values


def to_int4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.lowbit.to_int4`, and ``packed``.

    Args:
        values: ``[rows, peers]`` of any floating-point dtype; spreads are finite.

    Returns:
        Two steps in a byte, ``[(rows * peers + 1) // 2]`` uint8, and the least and the largest
        of each row in single precision.
    """
    dense = values.contiguous()
    pairs = torch.empty((values.numel() + 1) // 2, dtype=torch.uint8, device=values.device)
    low, high = torch.zeros(2, len(values), dtype=torch.float32, device=values.device)
    if pairs.numel():
        grid, tile = _tiles((len(values) + 1) // 2, values.shape[1])
        with torch.cuda.device_of(values):
            _to_int4[grid](
                dense,
                pairs,
                low,
                high,
                *values.shape,
                MOST=INT4,
                ROUNDING=_ROUNDING,
                **tile,
                enable_fp_fusion=False,
            )
    return pairs, low, high


def from_int4(
    pairs: torch.Tensor, low: torch.Tensor, high: torch.Tensor, peers: int, dtype: torch.dtype
) -> torch.Tensor:
    """What :func:`to_int4` was given, ``[rows, peers]``, to half a step, as *dtype*."""
    dense = pairs.contiguous()
    values = torch.empty((len(low), peers), dtype=dtype, device=pairs.device)
    if values.numel():
        grid, tile = _tiles((len(low) + 1) // 2, peers)
        with torch.cuda.device_of(pairs):
            _from_int4[grid](
                dense, low, high, values, *values.shape, MOST=INT4, **tile, enable_fp_fusion=False
            )
    return values


def _levels(
    values: torch.Tensor, kind: torch.dtype, most: int, added: int
) -> tuple[torch.Tensor, torch.Tensor]:
    dense = values.contiguous()
    levels = torch.empty(values.shape, dtype=kind, device=values.device)
    peaks = torch.zeros(len(values), dtype=torch.float32, device=values.device)
    if levels.numel():
        grid, tile = _tiles(*values.shape)
        with torch.cuda.device_of(values):
            _to_levels[grid](
                dense,
                levels,
                peaks,
                *values.shape,
                MOST=most,
                ADDED=added,
                ROUNDING=_ROUNDING,
                **tile,
                enable_fp_fusion=False,
            )
    return levels, peaks


def _tiles(rows: int, peers: int) -> tuple[tuple[int], dict[str, int]]:
    """How many programs there are, and how many rows each of them has, with room for *peers*."""
    wide = triton.next_power_of_2(peers)
    each = max(1, TILE // wide)
    return (triton.cdiv(rows, each),), {"ROWS": each, "PEERS": wide}


@triton.jit
def _shares(values, peaks, at, mask, row, rows, ROWS: tl.constexpr, PEERS: tl.constexpr):
    """Numbers as parts of the largest magnitude in their row, which goes to *peaks*."""
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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    peer = tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    at = row.to(tl.int64)[:, None] * peers + peer[None, :]
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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    peer = tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    at = row.to(tl.int64)[:, None] * peers + peer[None, :]
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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    peer = tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    at = row.to(tl.int64)[:, None] * peers + peer[None, :]
    scaled = _shares(values, peaks, at, mask, row, rows, ROWS, PEERS) * MOST
    bits = scaled.to(tl.int32, bitcast=True)
    sign, size = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    # Three bits of fraction stay, to nearest, ties to even; exponents count from -7, not -127.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # What is less than 2**-6 is a multiple of 2**-9.
    small = ((tl.abs(scaled) * 512 + ROUNDING) - ROUNDING).to(tl.int32)
    code = tl.where(size < (121 << 23), small, normal) | sign
    tl.store(codes + at, code.to(tl.uint8), mask=mask)


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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    peer = tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    at = row.to(tl.int64)[:, None] * peers + peer[None, :]
    code = tl.load(codes + at, mask=mask, other=0).to(tl.int32)
    size = code & 0x7F
    normal = ((size + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    number = tl.where(size < 8, size.to(tl.float32) * (1.0 / 512), normal)
    number = tl.where(size == 0x7F, 0.0, number)  # NaN, which no encoder writes
    share = tl.div_rn(number, tl.full((ROWS, PEERS), MOST, tl.float32))
    share = tl.where(code < 0x80, share, -share)
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
        step = ((both >> (4 * odd)) & 15).to(tl.float32)
        share = tl.div_rn(step, tl.full((ROWS, PEERS), MOST, tl.float32))
        value = share * high + (1.0 - share) * low
        value = tl.minimum(tl.maximum(value, low), high)
        tl.store(values + 2 * at + odd, value.to(values.dtype.element_ty), mask=mask)
