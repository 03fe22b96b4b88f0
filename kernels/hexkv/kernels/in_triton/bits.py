"""Numbers whose upper bits are coded by tables of the payload's own, decoded from its bytes.

The payload has counts, which are a few bytes; a decoder's table has 16 KiB each, so a first launch
makes it in the device's memory, and it never crosses the bus.
"""

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.plain import GROUP, LEAST
from hexkv.kernels.coding.tables import BITS, TOTAL

TABLE_FIELDS = 2
"""Of a table: where its counts are, and how many."""

BIT_FIELDS = 14
"""Of a group of lanes: where its words begin and end, its states, its classes; in elements, where
the slots of its plane begin; the meanings of symbols; three arrays of lower bits, of which there
may be fewer: bytes, and at last those of seven bits; an eighth of the plane's numbers; in elements,
where the plane begins in the chunk; its first lane; elements of a token; lanes."""

_WARPS = 8
"""Of a program that makes a table."""


def decode(
    coded: torch.Tensor,
    tables: torch.Tensor,
    groups: torch.Tensor,
    into: torch.Tensor,
    tokens: int,
    form: tuple[int, bool, int],
) -> torch.Tensor:
    """Decode the groups of lanes into a chunk.

    Args:
        coded: uint8, the payload.
        tables: ``[tables, TABLE_FIELDS]`` int64.
        groups: ``[groups, BIT_FIELDS]`` int64.
        into: the chunk, as integers of the size of its dtype.
        tokens: of the chunk.
        form: see :data:`hexkv.kernels.payloads.FORMS`.

    Returns:
        ``[groups]`` int32: one where the streams ended as they should, else zero.
    """
    whole, sevens, shift = form
    slots = torch.empty(len(tables) * TOTAL, dtype=torch.int32, device=coded.device)
    ended = torch.empty(len(groups), dtype=torch.int32, device=coded.device)
    with torch.cuda.device_of(coded):
        _slots[(len(tables),)](
            coded, tables, slots, FIELDS=TABLE_FIELDS, BITS=BITS, num_warps=_WARPS
        )
        _decode[(len(groups),)](
            coded,
            groups,
            slots,
            into,
            ended,
            tokens,
            FIELDS=BIT_FIELDS,
            GROUP=GROUP,
            BITS=BITS,
            LEAST=LEAST,
            WHOLE=whole,
            SEVENS=sevens,
            SHIFT=shift,
            num_warps=GROUP // 32,
        )
    return ended


@triton.jit
def _word(coded, at, mask):
    """Load two bytes at *at*, at any alignment."""
    low = tl.load(coded + at, mask=mask, other=0).to(tl.uint32)
    return low | (tl.load(coded + at + 1, mask=mask, other=0).to(tl.uint32) << 8)


@triton.jit
def _slots(coded, table, slots, FIELDS: tl.constexpr, BITS: tl.constexpr):
    """Make a decoder's table by the low bits of its state: see ``kernels.coding.tables.Tables``."""
    number = tl.program_id(0)
    line = table + number * FIELDS
    place = tl.load(line)
    symbols = tl.load(line + 1)
    slot = tl.arange(0, 1 << BITS).to(tl.uint32)
    entry = slot * 0
    start = slot * 0
    for symbol in range(symbols):
        count = _word(coded, place + 2 * symbol + slot * 0, slot >= 0)
        inside = (slot >= start) & (slot < start + count)
        made = (count << 20) | ((slot - start) << 8) | (slot * 0 + symbol).to(tl.uint32)
        entry = tl.where(inside, made, entry)
        start += count
    tl.store(slots + (number.to(tl.int64) << BITS) + slot, entry.to(tl.int32, bitcast=True))


# A token count of one would be compiled in, and be a constant instead of a number on the GPU.
@triton.jit(do_not_specialize=["tokens"])
def _decode(
    coded,
    table,
    slots,
    into,
    ended,
    tokens,
    FIELDS: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
    WHOLE: tl.constexpr,
    SEVENS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    group = tl.program_id(0)
    line = table + group * FIELDS
    at = tl.load(line)
    end = tl.load(line + 1)
    share = tl.load(line + 9)
    row = tl.load(line + 12)
    lane = tl.arange(0, GROUP)
    here = lane < tl.load(line + 13)
    first = tl.load(line + 2) + 4 * lane
    state = _word(coded, first, here) | (_word(coded, first + 2, here) << 16)
    state = tl.where(here, state, LEAST)
    kind = tl.load(coded + tl.load(line + 3) + lane, mask=here, other=0)
    place_of_slots = slots + tl.load(line + 4) + (kind.to(tl.int64) << BITS)
    meanings = tl.load(line + 5)
    sevens = tl.load(line + 6 + WHOLE)
    element = tl.load(line + 11) + lane
    target = into + tl.load(line + 10) + element
    size: tl.constexpr = into.dtype.element_ty.primitive_bitwidth
    for _ in range(tokens):
        entry = tl.load(place_of_slots + (state & ((1 << BITS) - 1)), mask=here, other=0)
        entry = entry.to(tl.uint32, bitcast=True)
        number = _word(coded, meanings + 2 * (entry & 0xFF), here) << SHIFT
        for byte in tl.static_range(WHOLE):
            lower = tl.load(coded + tl.load(line + 6 + byte) + element, mask=here, other=0)
            number |= lower.to(tl.uint32) << (8 * byte)
        if SEVENS:
            # The last eighth of the numbers has its bits above those of all others.
            plain = here & (element < 7 * share)
            lower = tl.load(coded + sevens + element, mask=plain, other=0).to(tl.uint32) & 0x7F
            last = here & (element >= 7 * share)
            rest = sevens + element - 7 * share
            for part in tl.static_range(7):
                high = tl.load(coded + rest + part * share, mask=last, other=0)
                lower |= (high.to(tl.uint32) >> 7) << part
            number |= lower << (8 * WHOLE)
        if size == 16:
            made = number.to(tl.uint16).to(tl.int16, bitcast=True)
        else:
            made = number.to(tl.int32, bitcast=True)
        tl.store(target, made, mask=here)
        state = (entry >> 20) * (state >> BITS) + ((entry >> 8) & ((1 << BITS) - 1))
        hungry = here & (state < LEAST)
        taking = hungry.to(tl.int32)
        place = at + 2 * (tl.cumsum(taking, 0) - taking)
        word = _word(coded, place, hungry & (place < end))
        state = tl.where(hungry, (state << 16) | word, state)
        at += 2 * tl.sum(taking, 0)
        element += row
        target += row
    # All lanes are back in an encoder's first state, and no word is left or was missing.
    wrong = tl.sum((here & (state != LEAST)).to(tl.int32), 0)
    tl.store(ended + group, ((wrong == 0) & (at == end)).to(tl.int32))
