"""Coded chunks decoded from the bytes of their payload: one launch for all planes of a kind.

Nothing in a payload is aligned, so everything is read byte by byte; and every place comes from a
table in the device's memory, one line for each program or plane.
"""

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.lowbit import FLOAT8_MOST, INT4, INT8
from hexkv.kernels.coding.plain import GROUP, LEAST
from hexkv.kernels.coding.tables import BITS
from hexkv.kernels.in_triton.lowbit import float8_share, int4_number
from hexkv.kernels.payloads import Float8Plane, Int4Plane, Int8Plane, ScaledPlane

CODED_FIELDS = 11
"""Of a group of lanes: where its words begin and end, its states, classes, turns; the scales of its
plane; in elements, where its tables of slots and of levels begin, and its values; elements of a
token; lanes."""

SCALED_FIELDS = 7
"""Of groups that have scales: where the scales are, or the least numbers; the largest, if so; the
codes; in elements, where its values begin; groups; numbers of each; elements of a token."""

CODES = {Int8Plane: 0, Float8Plane: 1, Int4Plane: 2}
"""The kernel's number for each coding."""

_MOST = (INT8, FLOAT8_MOST, INT4)
"""The largest number of each coding."""

_KINDS = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
}

_TILE = 1024
"""Elements of a program."""

_CHANNEL_TOKENS = 32
"""Numbers of a channel that one program has at most: its elements lie side by side in the payload,
and those of as many channels in the chunk."""


def decode(
    coded: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    levels: torch.Tensor,
    into: torch.Tensor,
    tokens: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Decode the groups of *table* into a chunk.

    Args:
        coded: uint8, the payload.
        table: ``[groups, CODED_FIELDS]`` int64.
        slots: ``Tables.slots`` of all alphabets, one after the other, as int32.
        levels: each symbol's share of the largest magnitude, twice, of all alphabets in that order.
        into: the chunk, as integers of the size of *dtype*.
        tokens: of the chunk.
        dtype: of the layout.

    Returns:
        ``[groups]`` int32: one where the streams ended as they should, else zero.
    """
    ended = torch.empty(len(table), dtype=torch.int32, device=coded.device)
    with torch.cuda.device_of(coded):
        _decode[(len(table),)](
            coded,
            table,
            slots,
            levels,
            into,
            ended,
            tokens,
            FIELDS=CODED_FIELDS,
            GROUP=GROUP,
            BITS=BITS,
            LEAST=LEAST,
            KIND=_KINDS[dtype],
            num_warps=GROUP // 32,
            enable_fp_fusion=False,
        )
    return ended


def from_scaled(
    coded: torch.Tensor,
    table: torch.Tensor,
    into: torch.Tensor,
    kind: type[ScaledPlane],
    groups: int,
    peers: int,
    dtype: torch.dtype,
    *,
    by_channel: bool,
) -> None:
    """Decode the groups of *table* into a chunk.

    Args:
        coded: uint8, the payload.
        table: ``[lines, SCALED_FIELDS]`` int64.
        into: the chunk, as integers of the size of *dtype*.
        kind: how all of them are coded.
        groups: the most that a line has.
        peers: the most numbers that a group has.
        dtype: of the layout.
        by_channel: the numbers of a group are a channel's, of some tokens; else they lie in the
            chunk as they do in the payload.
    """
    wide = min(triton.next_power_of_2(peers), _CHANNEL_TOKENS if by_channel else _TILE)
    each = max(1, _TILE // wide)
    with torch.cuda.device_of(coded):
        _from_scaled[(triton.cdiv(groups, each), triton.cdiv(peers, wide), len(table))](
            coded,
            table,
            into,
            FIELDS=SCALED_FIELDS,
            CODE=CODES[kind],
            MOST=_MOST[CODES[kind]],
            BY_CHANNEL=by_channel,
            ROWS=each,
            PEERS=wide,
            KIND=_KINDS[dtype],
            enable_fp_fusion=False,
        )


@triton.jit
def _scale(coded, at, mask, KIND: tl.constexpr):
    """Load the numbers of the layout's dtype at bytes *at*, in single precision."""
    bits = tl.load(coded + at, mask=mask, other=0).to(tl.uint32)
    bits |= tl.load(coded + at + 1, mask=mask, other=0).to(tl.uint32) << 8
    if tl.float32 == KIND:
        bits |= tl.load(coded + at + 2, mask=mask, other=0).to(tl.uint32) << 16
        bits |= tl.load(coded + at + 3, mask=mask, other=0).to(tl.uint32) << 24
        number = bits.to(tl.float32, bitcast=True)
    elif tl.bfloat16 == KIND:
        number = (bits << 16).to(tl.float32, bitcast=True)
    else:
        number = bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return number


@triton.jit
def _narrowed(number, KIND: tl.constexpr):
    """Return the bits of *number* in the layout's dtype, rounded to nearest, ties to even.

    In integers for bfloat16: Triton's interpreter cuts off, and results must not depend on it.
    """
    if KIND == tl.float32:
        made = number.to(tl.int32, bitcast=True)
    elif KIND == tl.bfloat16:
        bits = number.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        made = bits.to(tl.uint16).to(tl.int16, bitcast=True)
    else:
        made = number.to(tl.float16).to(tl.int16, bitcast=True)
    return made


# A token count of one would be compiled in, and be a constant instead of a number on the GPU.
@triton.jit(do_not_specialize=["tokens"])
def _decode(
    coded,
    table,
    slots,
    levels,
    into,
    ended,
    tokens,
    FIELDS: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
    KIND: tl.constexpr,
):
    group = tl.program_id(0)
    line = table + group * FIELDS
    at = tl.load(line)
    end = tl.load(line + 1)
    row = tl.load(line + 9)
    lane = tl.arange(0, GROUP)
    here = lane < tl.load(line + 10)
    state = tl.full((GROUP,), 0, tl.uint32)
    first = tl.load(line + 2) + 4 * lane
    for byte in tl.static_range(4):
        part = tl.load(coded + first + byte, mask=here, other=0)
        state |= part.to(tl.uint32) << (8 * byte)
    state = tl.where(here, state, LEAST)
    kind = tl.load(coded + tl.load(line + 3) + lane, mask=here, other=0)
    turn = tl.load(coded + tl.load(line + 4) + lane, mask=here, other=0).to(tl.uint32)
    scale = tl.load(line + 5)
    place_of_slots = slots + tl.load(line + 6) + (kind.to(tl.int64) << BITS)
    level_of = levels + tl.load(line + 7)
    target = into + tl.load(line + 8) + lane
    size: tl.constexpr = into.dtype.element_ty.primitive_bitwidth // 8
    for _ in range(tokens):
        entry = tl.load(place_of_slots + (state & ((1 << BITS) - 1)), mask=here, other=0)
        entry = entry.to(tl.uint32, bitcast=True)
        level = tl.load(level_of + ((entry & 0xFF) + turn), mask=here, other=0)
        # The same for all lanes, but an address for each keeps the load one of vectors.
        peak = _scale(coded, scale + lane * 0, here, KIND)
        tl.store(target, _narrowed(peak * level, KIND), mask=here)
        state = (entry >> 20) * (state >> BITS) + ((entry >> 8) & ((1 << BITS) - 1))
        hungry = here & (state < LEAST)
        taking = hungry.to(tl.int32)
        place = at + 2 * (tl.cumsum(taking, 0) - taking)
        there = hungry & (place < end)
        word = tl.load(coded + place, mask=there, other=0).to(tl.uint32)
        word |= tl.load(coded + place + 1, mask=there, other=0).to(tl.uint32) << 8
        state = tl.where(hungry, (state << 16) | word, state)
        at += 2 * tl.sum(taking, 0)
        scale += size
        target += row
    # All lanes are back in an encoder's first state, and no word is left or was missing.
    wrong = tl.sum((here & (state != LEAST)).to(tl.int32), 0)
    tl.store(ended + group, ((wrong == 0) & (at == end)).to(tl.int32))


@triton.jit
def _from_scaled(
    coded,
    table,
    into,
    FIELDS: tl.constexpr,
    CODE: tl.constexpr,
    MOST: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
    KIND: tl.constexpr,
):
    line = table + tl.program_id(2) * FIELDS
    scales = tl.load(line)
    highs = tl.load(line + 1)
    codes = tl.load(line + 2)
    target = tl.load(line + 3)
    rows = tl.load(line + 4)
    peers = tl.load(line + 5)
    token = tl.load(line + 6)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    peer = tl.program_id(1).to(tl.int64) * PEERS + tl.arange(0, PEERS)
    mask = (row < rows)[:, None] & (peer < peers)[None, :]
    at = row[:, None] * peers + peer[None, :]
    size: tl.constexpr = into.dtype.element_ty.primitive_bitwidth // 8
    scale = _scale(coded, scales + row * size, row < rows, KIND)[:, None]
    if CODE == 2:
        both = tl.load(coded + codes + at // 2, mask=mask, other=0).to(tl.int32)
        step = (both >> (4 * (at % 2)).to(tl.int32)) & 15
        high = _scale(coded, highs + row * size, row < rows, KIND)[:, None]
        value = int4_number(step, scale, high, MOST, ROWS, PEERS)
    elif CODE == 1:
        code = tl.load(coded + codes + at, mask=mask, other=0).to(tl.int32)
        value = float8_share(code, MOST, ROWS, PEERS) * scale
    else:
        level = tl.load(coded + codes + at, mask=mask, other=0).to(tl.int8, bitcast=True)
        share = tl.div_rn(level.to(tl.float32), tl.full((ROWS, PEERS), MOST, tl.float32))
        value = share * scale
    if BY_CHANNEL:
        at = peer[None, :] * token + row[:, None]
    tl.store(into + target + at, _narrowed(value, KIND), mask=mask)
