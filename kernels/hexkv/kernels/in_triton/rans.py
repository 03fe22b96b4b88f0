"""Interleaved rANS on a GPU: the streams of :mod:`hexkv.kernels.coding.plain`, bit for bit.

A program has a group of 64 lanes, and cannot leave it: reads are masked by the ends of its own
stream, and every index into tables is made of a few bits.
"""

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.plain import GROUP, LEAST
from hexkv.kernels.coding.tables import BITS


def decode(
    words: torch.Tensor,
    lengths: torch.Tensor,
    states: torch.Tensor,
    classes: torch.Tensor,
    turns: torch.Tensor,
    slots: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.plain.decode`; all on one GPU.

    A chunk is one launch: its planes follow each other, each with its own groups, words and lanes,
    and all of one alphabet and one number of channels.

    Args:
        words: ``[words]`` int16 or uint16: bits, not numbers.
        lengths: ``[planes * groups]`` int64, which add up to the words.
        states: ``[planes * channels]`` int32 or uint32: bits, not numbers.
        classes: ``[planes * channels]`` uint8, less than ``CLASSES``.
        turns: ``[planes * channels]`` uint8, less than the symbols.
        slots: ``Tables.slots`` as int32 or uint32.
        values: ``[planes, tokens, 2 * symbols]`` of 16 or 32 bits.

    Returns:
        ``[planes, tokens, channels]`` values, as a chunk has them, and a scalar on the GPU: True if
        every stream ended correctly. Reading it waits for the GPU.
    """
    planes, tokens, choices = values.shape
    channels = len(states) // planes
    into = torch.empty((planes, tokens, channels), dtype=values.dtype, device=values.device)
    ended = torch.zeros(len(lengths), dtype=torch.int32, device=values.device)
    if len(lengths):
        with torch.cuda.device_of(values):
            _decode[(-(-channels // GROUP), planes)](
                words.view(torch.int16),
                torch.cumsum(lengths, 0),
                lengths,
                states.view(torch.int32),
                classes,
                turns,
                slots.view(torch.int32),
                values.contiguous(),
                into,
                ended,
                tokens,
                channels,
                choices,
                GROUP=GROUP,
                BITS=BITS,
                LEAST=LEAST,
                num_warps=GROUP // 32,
                enable_fp_fusion=False,
            )
    return into, ended.all()


# A token count of one would be compiled in, and be a constant instead of a number on the GPU.
@triton.jit(do_not_specialize=["tokens"])
def _decode(
    words,
    ends,
    lengths,
    states,
    classes,
    turns,
    slots,
    values,
    into,
    ended,
    tokens,
    channels,
    choices,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
):
    plane = tl.program_id(1)
    group = plane * tl.num_programs(0) + tl.program_id(0)
    channel = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    here = channel < channels
    lane = plane * channels + channel
    end = tl.load(ends + group)
    at = end - tl.load(lengths + group)
    state = tl.load(states + lane, mask=here, other=LEAST).to(tl.uint32, bitcast=True)
    turn = tl.load(turns + lane, mask=here, other=0).to(tl.uint32)
    row = tl.load(classes + lane, mask=here, other=0).to(tl.uint32) << BITS
    first = plane.to(tl.int64) * tokens
    row_of_values, target = values + first * choices, into + first * channels + channel
    for _ in range(tokens):
        entry = tl.load(slots + (row + (state & ((1 << BITS) - 1))), mask=here, other=0)
        entry = entry.to(tl.uint32, bitcast=True)
        value = tl.load(row_of_values + ((entry & 0xFF) + turn), mask=here, other=0)
        tl.store(target, value, mask=here)
        state = (entry >> 20) * (state >> BITS) + ((entry >> 8) & ((1 << BITS) - 1))
        hungry = here & (state < LEAST)
        taking = hungry.to(tl.int32)
        place = at + tl.cumsum(taking, 0) - taking
        word = tl.load(words + place, mask=hungry & (place < end), other=0)
        word = word.to(tl.uint16, bitcast=True).to(tl.uint32)
        state = tl.where(hungry, (state << 16) | word, state)
        at += tl.sum(taking, 0)
        row_of_values += choices
        target += channels
    # All lanes are back in an encoder's first state, and no word is left or was missing.
    wrong = tl.sum((here & (state != LEAST)).to(tl.int32), 0)
    tl.store(ended + group, ((wrong == 0) & (at == end)).to(tl.int32))


def encode(
    symbols: torch.Tensor,
    classes: torch.Tensor,
    turns: torch.Tensor,
    packed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.plain.encode`; all on one GPU.

    Args:
        symbols: ``[planes, tokens, channels]`` uint8.
        classes: ``[planes * channels]`` uint8.
        turns: ``[planes * channels]`` uint8.
        packed: ``Tables.packed`` as int32 or uint32.

    Returns:
        Words as int16, the length of each group's as int64, and the state of each lane as
        int32: bits, not numbers, one plane after another. Cutting the words out waits for
        the GPU.
    """
    planes, tokens, channels = symbols.shape
    groups, room, device = -(-channels // GROUP), tokens * GROUP, symbols.device
    # A stream is written from its end: its first word is that of the first token.
    streams = torch.empty((planes * groups, room), dtype=torch.int16, device=device)
    lengths = torch.empty(planes * groups, dtype=torch.int64, device=device)
    states = torch.empty(planes * channels, dtype=torch.int32, device=device)
    if len(lengths):
        with torch.cuda.device_of(symbols):
            _encode[(groups, planes)](
                symbols.contiguous(),
                classes,
                turns,
                packed.view(torch.int32),
                streams,
                lengths,
                states,
                tokens,
                channels,
                packed.shape[1],
                GROUP=GROUP,
                BITS=BITS,
                LEAST=LEAST,
                num_warps=GROUP // 32,
                enable_fp_fusion=False,
            )
    used = torch.arange(room, device=device) >= (room - lengths)[:, None]
    return streams[used], lengths, states


@triton.jit(do_not_specialize=["tokens"])
def _encode(
    symbols,
    classes,
    turns,
    packed,
    streams,
    lengths,
    states,
    tokens,
    channels,
    many,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
):
    plane = tl.program_id(1)
    group = plane * tl.num_programs(0) + tl.program_id(0)
    channel = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    here = channel < channels
    lane = plane * channels + channel
    stream = streams + group.to(tl.int64) * tokens * GROUP
    state = tl.full((GROUP,), LEAST, tl.uint32)
    turn = tl.load(turns + lane, mask=here, other=0).to(tl.int32)
    row = tl.load(classes + lane, mask=here, other=0).to(tl.int32) * many
    at = tokens * GROUP
    source = symbols + channel + ((plane.to(tl.int64) + 1) * tokens - 1) * channels
    for _ in range(tokens):
        symbol = tl.load(source, mask=here, other=0)
        source -= channels
        turned = symbol.to(tl.int32) - turn
        turned = tl.where(turned < 0, turned + many, turned)
        entry = tl.load(packed + row + turned, mask=here, other=1).to(tl.uint32, bitcast=True)
        count = entry & 0xFFFF
        full = here & (state >= (count << (32 - BITS)))
        giving = full.to(tl.int32)
        at -= tl.sum(giving, 0)
        place = at + tl.cumsum(giving, 0) - giving
        tl.store(stream + place, (state & 0xFFFF).to(tl.uint16).to(tl.int16, bitcast=True), full)
        state = tl.where(full, state >> 16, state)
        state = ((state // count) << BITS) + state % count + (entry >> 16)
    tl.store(lengths + group, (tokens * GROUP - at).to(tl.int64))
    tl.store(states + lane, state.to(tl.int32, bitcast=True), mask=here)
