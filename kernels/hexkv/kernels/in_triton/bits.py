"""Numbers coded by rANS decoded from the bytes of their blocks into pages.

Levels have tables that decoders know. Upper bits have tables of the block's own: it has counts, a
few bytes; a decoder's table has 16 KiB each, so a first launch makes it in the device's memory,
and it never crosses the bus.
"""

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.plain import GROUP, LEAST
from hexkv.kernels.coding.tables import BITS, CLASSES, TOTAL
from hexkv.kernels.in_triton.payloads import (
    Job,
    as_stored,
    block_of,
    number_at,
    scaled,
    u16,
    u32,
)

HALF_NUMBERS = 64
"""Lines of the table of alphabets."""

_WARPS = 8
"""Of a program that makes a table."""


def from_levels(
    job: Job, alphabets: torch.Tensor, slot_table: torch.Tensor, levels: torch.Tensor
) -> None:
    """Decode blocks of ``LEVELS``.

    Args:
        job: the launch.
        alphabets: ``[HALF_NUMBERS, 3]`` int32 by largest level: its first slot and level, and its
            symbols; none where there is no such alphabet.
        slot_table: int32: ``Tables.slots`` of all alphabets, one after the other.
        levels: each symbol's share of the largest magnitude, twice, in that order.
    """
    job.driver.launch(
        _from_levels,
        (job.groups, job.some, job.chunks),
        *job.given,
        alphabets,
        slot_table,
        levels,
        **job.constants,
        WIDTH=job.width,
        KIND=job.kind,
        HALF_NUMBERS=HALF_NUMBERS,
        CLASSES=CLASSES,
        INFINITY=job.infinity,
        GROUPS=job.groups,
        WIDE=1 << (job.groups - 1).bit_length(),
        GROUP=GROUP,
        BITS=BITS,
        LEAST=LEAST,
        num_warps=1,
    )


def from_bits(job: Job, tables: torch.Tensor, most: int, form: tuple[int, bool, int]) -> None:
    """Decode blocks of ``BITS``; the number of each among its chunks' is that of its first table.

    Args:
        job: the launches.
        tables: int32, ``TOTAL`` for each table of all blocks.
        most: the most tables that a block has.
        form: see :data:`hexkv.kernels.payloads.FORMS`.
    """
    whole, sevens, shift = form
    own = {"WHOLE": whole, "SEVENS": sevens, "BITS": BITS}
    job.driver.launch(
        _slots,
        (most, job.some, job.chunks),
        *(job.given[at] for at in (0, 1, 2, 4, 5, 6, 7)),
        tables,
        **job.constants,
        **own,
        TOTAL=TOTAL,
        num_warps=_WARPS,
    )
    job.driver.launch(
        _from_bits,
        (job.groups, job.some, job.chunks),
        *job.given,
        tables,
        **job.constants,
        **own,
        WIDTH=job.width,
        SHIFT=shift,
        GROUPS=job.groups,
        WIDE=1 << (job.groups - 1).bit_length(),
        GROUP=GROUP,
        LEAST=LEAST,
        num_warps=1,
    )


@triton.jit
def _raw(
    coded,
    begin,
    tokens,
    slots,
    block,
    plane,
    target,
    channel,
    there,
    ROW: tl.constexpr,
    INTO: tl.constexpr,
):
    """Copy lanes of a block that is the plane itself."""
    size: tl.constexpr = INTO.primitive_bitwidth // 8
    for token in range(tokens):
        slot = tl.load(slots + token)
        number = number_at(coded, begin + (token * ROW + channel) * size, there, INTO)
        paged = target + (slot // block * tl.load(plane + 1) + slot % block * tl.load(plane + 2))
        tl.store(paged, as_stored(number, INTO), mask=there & (slot + channel * 0 >= 0))


@triton.jit
def _after(coded, entry, state, at, end, there, BITS: tl.constexpr, LEAST: tl.constexpr):
    """Return the lanes' states after a symbol, and the place of the next word."""
    state = (entry >> 20) * (state >> BITS) + ((entry >> 8) & ((1 << BITS) - 1))
    hungry = there & (state < LEAST)
    taking = hungry.to(tl.int32)
    taken = at + 2 * (tl.cumsum(taking, 0) - taking)
    some = hungry & (taken < end)
    word = tl.load(coded + taken, mask=some, other=0).to(tl.uint32)
    word |= tl.load(coded + taken + 1, mask=some, other=0).to(tl.uint32) << 8
    return tl.where(hungry, (state << 16) | word, state), at + 2 * tl.sum(taking, 0)


@triton.jit
def _head(begin, tokens, ROW: tl.constexpr, WHOLE: tl.constexpr, SEVENS: tl.constexpr):
    """Return the place behind the lower bits, and an eighth of the numbers, rounded up."""
    numbers = tokens * ROW
    share = (numbers + 7) // 8
    return begin + numbers * WHOLE + share * (7 if SEVENS else 0), share


# A number of one would be compiled in, and be a constant instead of a number on the GPU.
@triton.jit(do_not_specialize=["first", "skipped", "stride"])
def _slots(
    coded,
    planes,
    lines,
    wrong,
    first,
    skipped,
    stride,
    tables,
    ROW: tl.constexpr,
    INTO: tl.constexpr,
    PLANE: tl.constexpr,
    LINE: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    SEVENS: tl.constexpr,
    BITS: tl.constexpr,
    TOTAL: tl.constexpr,
):
    """Make a decoder's table by the low bits of its state: see ``kernels.coding.tables.Tables``."""
    number = tl.program_id(0)
    plane = planes + (first + tl.program_id(1)) * PLANE
    line = lines + tl.program_id(2).to(tl.int64) * stride
    tokens = tl.load(line + 1)
    here = block_of(plane, line, skipped, LINE, BLOCK)
    begin = tl.load(here)
    stop = tl.load(here + 1)
    size: tl.constexpr = INTO.primitive_bitwidth // 8
    if stop - begin != tokens * ROW * size:
        head, _ = _head(begin, tokens, ROW, WHOLE, SEVENS)
        symbols = tl.load(coded + head).to(tl.int32) + 1
        many = tl.load(coded + head + 1).to(tl.int32)
        counts = head + 2 + 2 * symbols + 2 * symbols * number
        if (number < many) & (counts + 2 * symbols <= stop):
            slot = tl.arange(0, 1 << BITS).to(tl.uint32)
            entry = slot * 0
            start = slot * 0
            bad = 0
            for symbol in range(symbols):
                count = u16(coded, counts + 2 * symbol + slot * 0, slot >= 0)
                inside = (slot >= start) & (slot < start + count)
                made = (count << 20) | ((slot - start) << 8) | (slot * 0 + symbol).to(tl.uint32)
                entry = tl.where(inside, made, entry)
                start += count
                bad += tl.max((count == TOTAL).to(tl.int32), 0)
            bad += tl.max((start != TOTAL).to(tl.int32), 0)
            into = tables + ((tl.load(here + 2) + number) << BITS)
            tl.store(into + slot, entry.to(tl.int32, bitcast=True))
            tl.store(wrong, 1, mask=bad > 0)


@triton.jit(do_not_specialize=["first", "skipped", "stride", "block"])
def _from_bits(
    coded,
    planes,
    lines,
    slots,
    wrong,
    first,
    skipped,
    stride,
    block,
    tables,
    ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    INTO: tl.constexpr,
    PLANE: tl.constexpr,
    LINE: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    SEVENS: tl.constexpr,
    BITS: tl.constexpr,
    SHIFT: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Decode one group of lanes of one plane of one chunk."""
    size: tl.constexpr = INTO.primitive_bitwidth // 8
    group = tl.program_id(0)
    plane = planes + (first + tl.program_id(1)) * PLANE
    line = lines + tl.program_id(2).to(tl.int64) * stride
    place = tl.load(line)
    tokens = tl.load(line + 1)
    here = block_of(plane, line, skipped, LINE, BLOCK)
    begin = tl.load(here)
    stop = tl.load(here + 1)
    of_block = tl.load(plane + 1)
    of_token = tl.load(plane + 2)
    channel = group * GROUP + tl.arange(0, GROUP)
    there = channel < ROW
    target = tl.load(plane).to(tl.pointer_type(INTO))
    target += channel // WIDTH * tl.load(plane + 3) + channel % WIDTH
    if stop - begin == tokens * ROW * size:
        _raw(coded, begin, tokens, slots + place, block, plane, target, channel, there, ROW, INTO)
    else:
        head, share = _head(begin, tokens, ROW, WHOLE, SEVENS)
        symbols = tl.load(coded + head).to(tl.int32) + 1
        many = tl.load(coded + head + 1).to(tl.int32)
        meanings = head + 2
        classes = meanings + 2 * symbols + 2 * symbols * many
        states = classes + ROW
        lengths = states + 4 * ROW
        words = lengths + 4 * GROUPS
        bad = (words > stop).to(tl.int32)
        there = there & (bad + channel * 0 == 0)
        each = tl.arange(0, WIDE)
        sizes = u32(coded, lengths + 4 * each, (each < GROUPS) & (bad + each * 0 == 0)).to(tl.int64)
        at = words + 2 * tl.sum(tl.where(each < group, sizes, 0), 0)
        end = at + 2 * tl.sum(tl.where(each == group, sizes, 0), 0)
        kind = tl.load(coded + classes + channel, mask=there, other=0).to(tl.int64)
        bad += tl.sum((kind >= many).to(tl.int32), 0)
        bad += (words + 2 * tl.sum(sizes, 0) != stop).to(tl.int32)
        there = there & (bad + channel * 0 == 0)
        end = tl.where(bad == 0, end, at)
        state = tl.where(there, u32(coded, states + 4 * channel, there), LEAST)
        entries = tables + ((tl.load(here + 2) + kind) << BITS)
        element = channel.to(tl.int64)
        for token in range(tokens):
            entry = tl.load(entries + (state & ((1 << BITS) - 1)), mask=there, other=0)
            entry = entry.to(tl.uint32, bitcast=True)
            meaning = coded + (meanings + 2 * (entry & 0xFF))
            number = tl.load(meaning, mask=there, other=0).to(tl.uint32)
            number |= tl.load(meaning + 1, mask=there, other=0).to(tl.uint32) << 8
            number <<= SHIFT
            for byte in tl.static_range(WHOLE):
                lower = begin + tokens * ROW * byte + element
                lower = tl.load(coded + lower, mask=there, other=0)
                number |= lower.to(tl.uint32) << (8 * byte)
            if SEVENS:
                # The last eighth of the numbers has its bits above those of all others.
                sevens = begin + tokens * ROW * WHOLE
                plain = there & (element < 7 * share)
                lower = tl.load(coded + sevens + element, mask=plain, other=0).to(tl.uint32) & 0x7F
                last = there & (element >= 7 * share)
                rest = sevens + element - 7 * share
                for part in tl.static_range(7):
                    high = tl.load(coded + rest + part * share, mask=last, other=0)
                    lower |= (high.to(tl.uint32) >> 7) << part
                number |= lower << (8 * WHOLE)
            slot = tl.load(slots + place + token)
            paged = target + (slot // block * of_block + slot % block * of_token)
            tl.store(paged, as_stored(number, INTO), mask=there & (slot + channel * 0 >= 0))
            state, at = _after(coded, entry, state, at, end, there, BITS, LEAST)
            element += ROW
        # All lanes are back in an encoder's first state, and no word is left or was missing.
        bad += tl.sum((there & (state != LEAST)).to(tl.int32), 0) + (at != end).to(tl.int32)
        tl.store(wrong, 1, mask=bad > 0)


@triton.jit(do_not_specialize=["first", "skipped", "stride", "block"])
def _from_levels(
    coded,
    planes,
    lines,
    slots,
    wrong,
    first,
    skipped,
    stride,
    block,
    alphabets,
    slot_table,
    levels,
    ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    INTO: tl.constexpr,
    PLANE: tl.constexpr,
    LINE: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF_NUMBERS: tl.constexpr,
    CLASSES: tl.constexpr,
    INFINITY: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Decode one group of lanes of one plane of one chunk."""
    size: tl.constexpr = INTO.primitive_bitwidth // 8
    group = tl.program_id(0)
    plane = planes + (first + tl.program_id(1)) * PLANE
    line = lines + tl.program_id(2).to(tl.int64) * stride
    place = tl.load(line)
    tokens = tl.load(line + 1)
    here = block_of(plane, line, skipped, LINE, BLOCK)
    begin = tl.load(here)
    stop = tl.load(here + 1)
    of_block = tl.load(plane + 1)
    of_token = tl.load(plane + 2)
    channel = group * GROUP + tl.arange(0, GROUP)
    there = channel < ROW
    target = tl.load(plane).to(tl.pointer_type(INTO))
    target += channel // WIDTH * tl.load(plane + 3) + channel % WIDTH
    if stop - begin == tokens * ROW * size:
        _raw(coded, begin, tokens, slots + place, block, plane, target, channel, there, ROW, INTO)
    else:
        half = tl.load(coded + begin).to(tl.int32)
        known = half < HALF_NUMBERS
        alphabet = alphabets + tl.where(known, half, 0) * 3
        symbols = tl.where(known, tl.load(alphabet + 2), 0)
        scales = begin + 1
        classes = scales + size * tokens
        turns = classes + ROW
        states = turns + ROW
        lengths = states + 4 * ROW
        words = lengths + 4 * GROUPS
        each = tl.arange(0, WIDE)
        sizes = u32(coded, lengths + 4 * each, each < GROUPS).to(tl.int64)
        at = words + 2 * tl.sum(tl.where(each < group, sizes, 0), 0)
        end = at + 2 * tl.sum(tl.where(each == group, sizes, 0), 0)
        kind = tl.load(coded + classes + channel, mask=there, other=0).to(tl.int32)
        turn = tl.load(coded + turns + channel, mask=there, other=0).to(tl.int32)
        strange = (there & ((kind >= CLASSES) | (turn >= symbols))).to(tl.int32)
        bad = tl.sum(strange, 0) + (words + 2 * tl.sum(sizes, 0) != stop).to(tl.int32)
        there = there & (bad + channel * 0 == 0)
        end = tl.where(bad == 0, end, at)
        state = tl.where(there, u32(coded, states + 4 * channel, there), LEAST)
        entries = slot_table + tl.load(alphabet) + (kind << BITS)
        level_of = levels + tl.load(alphabet + 1) + turn
        worst = tl.full((GROUP,), 0, tl.uint32)
        for token in range(tokens):
            entry = tl.load(entries + (state & ((1 << BITS) - 1)), mask=there, other=0)
            entry = entry.to(tl.uint32, bitcast=True)
            level = tl.load(level_of + (entry & 0xFF), mask=there, other=0)
            # The same for all lanes, but an address for each keeps the load one of vectors.
            at_scale = coded + (scales + token * size + channel * 0)
            peak = tl.load(at_scale, mask=there, other=0).to(tl.uint32)
            for byte in tl.static_range(1, size):
                part = tl.load(at_scale + byte, mask=there, other=0)
                peak |= part.to(tl.uint32) << (8 * byte)
            worst = tl.maximum(worst, peak & INFINITY)
            slot = tl.load(slots + place + token)
            paged = target + (slot // block * of_block + slot % block * of_token)
            number = scaled(peak, level, KIND)
            tl.store(paged, number, mask=there & (slot + channel * 0 >= 0))
            state, at = _after(coded, entry, state, at, end, there, BITS, LEAST)
        # All lanes are back in an encoder's first state, and no word is left or was missing.
        bad += tl.sum((there & (worst == INFINITY)).to(tl.int32), 0)
        bad += tl.sum((there & (state != LEAST)).to(tl.int32), 0) + (at != end).to(tl.int32)
        tl.store(wrong, 1, mask=bad > 0)
