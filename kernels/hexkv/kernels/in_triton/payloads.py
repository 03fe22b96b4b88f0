"""Coded chunks decoded from their payloads into pages: one launch for all planes of one form.

Nothing in a payload is aligned, so everything is read byte by byte. Of each block the host has
found where it begins and ends; all else is checked here, and one word for all shows a fault. Blocks
that rANS coded are decoded by :mod:`hexkv.kernels.in_triton.bits`.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from hexkv.kernels.coding.lowbit import FLOAT8_MOST, INT4, INT8
from hexkv.kernels.coding.plain import GROUP
from hexkv.kernels.in_triton.lowbit import float8_share, int4_number
from hexkv.kernels.payloads import BLOCK_FIELDS, LINE_FIELDS
from hexkv.kernels.transfer import Driver

PLANE_FIELDS = 5
"""Of a plane: its address; in elements, from one block, token and head to the next; its number."""

MOST = {1: INT8, 2: FLOAT8_MOST, 3: INT4}
"""The largest number by coding."""

_KINDS = {
    torch.bfloat16: (tl.bfloat16, tl.int16, 0x7F80),
    torch.float16: (tl.float16, tl.int16, 0x7C00),
    torch.float32: (tl.float32, tl.int32, 0x7F800000),
}
"""Of a dtype, the integer of its size, and the bits that are set in all that is not finite."""

_TILE = 2048
"""Elements of a program."""

_CHANNEL_TOKENS = 32
"""Tokens of a program whose scales are of channels: their numbers lie side by side in the payload,
and those of as many channels in pages."""


class Job:
    """One launch's share of a call: tables, and properties of planes that are alike."""

    __slots__ = (
        "chunks",
        "constants",
        "driver",
        "given",
        "infinity",
        "kind",
        "most",
        "row",
        "some",
        "width",
    )

    def __init__(
        self,
        driver: Driver,
        tables: Sequence[torch.Tensor],
        *,
        first: int,
        some: int,
        skipped: int,
        stride: int,
        block: int,
        most: int,
        row: int,
        width: int,
        dtype: torch.dtype,
    ) -> None:
        """Describe a launch.

        Args:
            driver: of the device.
            tables: the payloads, uint8; planes, chunks with their blocks, and slots, int64; and the
                word that shows a fault.
            first: line of the first plane.
            some: number of planes.
            skipped: number of the first plane of the first layer that is decoded.
            stride: numbers from one chunk to the next.
            block: tokens in a block of pages.
            most: tokens of the longest chunk.
            row: elements of a token.
            width: elements of a head.
            dtype: of the layout.
        """
        self.driver, self.some, self.most, self.row, self.width = driver, some, most, row, width
        self.given = *tables, first, skipped, stride, block
        self.chunks = tables[2].numel() // stride
        self.kind, into, self.infinity = _KINDS[dtype]
        self.constants = {"ROW": row, "INTO": into, "PLANE": PLANE_FIELDS}
        self.constants |= {"LINE": LINE_FIELDS, "BLOCK": BLOCK_FIELDS}

    @property
    def groups(self) -> int:
        """Groups of lanes in a plane."""
        return -(-self.row // GROUP)


def from_scaled(job: Job, coding: int, together: int, pace: int, align: int) -> None:
    """Decode blocks of ``INT8``, ``FLOAT8`` or ``INT4``.

    Args:
        job: the launch.
        coding: which of them.
        together: see :class:`hexkv.kernels.payloads.PlaneForm`.
        pace: all blocks begin at a multiple of it, and all chunks have as many tokens.
        align: elements to a multiple of which everything in pages is aligned.
    """
    by_channel = coding == 2 or together > 0
    if by_channel:
        peers = _CHANNEL_TOKENS
        rows = min(_TILE // peers, 1 << (job.row - 1).bit_length())
        tiles = -(-job.row // rows) * -(-job.most // peers)
    else:
        peers = 1 << (job.width - 1).bit_length()
        rows = max(1, _TILE // peers)
        tiles = -(-job.most * (job.row // job.width) // rows)
    job.driver.launch(
        _from_scaled,
        (tiles, job.some, job.chunks),
        *job.given,
        **job.constants,
        WIDTH=job.width,
        KIND=job.kind,
        INFINITY=job.infinity,
        CODE=coding,
        MOST=MOST[coding],
        TOGETHER=together,
        BY_CHANNEL=by_channel,
        PACE=pace,
        ALIGN=align,
        ROWS=rows,
        PEERS=peers,
    )


@triton.jit
def u16(coded, at, mask) -> tl.tensor:
    """Load two bytes at *at*, at any alignment."""
    low = tl.load(coded + at, mask=mask, other=0).to(tl.uint32)
    return low | (tl.load(coded + at + 1, mask=mask, other=0).to(tl.uint32) << 8)


@triton.jit
def u32(coded, at, mask) -> tl.tensor:
    """Load four bytes."""
    return u16(coded, at, mask) | (u16(coded, at + 2, mask) << 16)


@triton.jit
def number_at(coded, at, mask, INTO: tl.constexpr) -> tl.tensor:
    """Load the bits of a number of the layout's dtype."""
    bits = u16(coded, at, mask)
    if INTO.primitive_bitwidth == 32:
        bits |= u16(coded, at + 2, mask) << 16
    return bits


@triton.jit
def as_stored(bits, INTO: tl.constexpr) -> tl.tensor:
    """Return *bits* as the integer that pages are written with."""
    if INTO.primitive_bitwidth == 32:
        made = bits.to(tl.int32, bitcast=True)
    else:
        made = bits.to(tl.uint16).to(tl.int16, bitcast=True)
    return made


@triton.jit
def _widened(bits, KIND: tl.constexpr):
    """Return *bits* of the layout's dtype in single precision."""
    if tl.float32 == KIND:
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


@triton.jit
def scaled(bits, share, KIND: tl.constexpr) -> tl.tensor:
    """Return the bits of *share* times a number of the layout's dtype, in that dtype."""
    return _narrowed(_widened(bits, KIND) * share, KIND)


@triton.jit
def block_of(plane, line, skipped, LINE: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Return the place of a plane's block among the numbers of a chunk."""
    return line + LINE + (tl.load(plane + 4) - skipped) * BLOCK


# A number of one would be compiled in, and be a constant instead of a number on the GPU.
@triton.jit(do_not_specialize=["first", "skipped", "stride", "block"])
def _from_scaled(
    coded,
    planes,
    lines,
    slots,
    wrong,
    first,
    skipped,
    stride,
    block,
    ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    INFINITY: tl.constexpr,
    INTO: tl.constexpr,
    PLANE: tl.constexpr,
    LINE: tl.constexpr,
    BLOCK: tl.constexpr,
    CODE: tl.constexpr,
    MOST: tl.constexpr,
    TOGETHER: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    PACE: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    PEERS: tl.constexpr,
):
    """Decode a tile of one plane of one chunk: heads of tokens, or tokens of channels."""
    size: tl.constexpr = INTO.primitive_bitwidth // 8
    heads: tl.constexpr = ROW // WIDTH
    plane = planes + (first + tl.program_id(1)) * PLANE
    line = lines + tl.program_id(2).to(tl.int64) * stride
    place = tl.load(line)
    tokens = tl.multiple_of(tl.load(line + 1), PACE)
    here = block_of(plane, line, skipped, LINE, BLOCK)
    begin = tl.multiple_of(tl.load(here), PACE)
    stop = tl.load(here + 1)
    target = tl.multiple_of(tl.load(plane).to(tl.pointer_type(INTO)), ALIGN * size)
    of_block = tl.multiple_of(tl.load(plane + 1), ALIGN)
    of_token = tl.multiple_of(tl.load(plane + 2), ALIGN)
    of_head = tl.multiple_of(tl.load(plane + 3), ALIGN)
    if BY_CHANNEL:
        across: tl.constexpr = (ROW + ROWS - 1) // ROWS
        tile = tl.program_id(0)
        channel = (tile % across * ROWS + tl.arange(0, ROWS))[:, None]
        token = (tile // across * PEERS + tl.arange(0, PEERS).to(tl.int64))[None, :]
        mask = (channel < ROW) & (token < tokens)
        inside = channel // WIDTH * of_head + channel % WIDTH
    else:
        row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
        peer = tl.arange(0, PEERS)[None, :]
        token = row // heads
        channel = row % heads * WIDTH + peer
        mask = (row < tokens * heads) & (peer < WIDTH)
        inside = row % heads * of_head + peer
    slot = tl.load(slots + place + token, mask=token < tokens, other=-1)
    paged = target + (slot // block * of_block + slot % block * of_token + inside)
    if stop - begin == tokens * ROW * size:
        at = begin + (token * ROW + channel) * size
        made = as_stored(number_at(coded, at, mask, INTO), INTO)
    else:
        if BY_CHANNEL:
            if CODE == 2:
                group = channel + token * 0
                groups = tokens * 0 + ROW
                number = channel * tokens + token
            else:
                part = token // TOGETHER
                peers = tl.minimum(tokens - part * TOGETHER, TOGETHER)
                group = part * ROW + channel
                groups = (tokens + TOGETHER - 1) // TOGETHER * ROW
                number = part * TOGETHER * ROW + channel * peers + token - part * TOGETHER
            known = mask
        else:
            group = row
            groups = tokens * heads
            number = row * WIDTH + peer
            known = row < groups
        scale = number_at(coded, begin + group * size, known, INTO)
        bad = tl.max(tl.max(scale & INFINITY, 1), 0)
        codes = begin + groups * size
        if CODE == 3:
            high = number_at(coded, codes + group * size, known, INTO)
            bad = tl.maximum(bad, tl.max(tl.max(high & INFINITY, 1), 0))
            both = tl.load(coded + codes + groups * size + number // 2, mask=mask, other=0)
            step = (both.to(tl.int32) >> (4 * (number % 2)).to(tl.int32)) & 15
            low, high = _widened(scale, KIND), _widened(high, KIND)
            value = int4_number(step, low, high, MOST, ROWS, PEERS)
        elif CODE == 2:
            code = tl.load(coded + codes + number, mask=mask, other=0).to(tl.int32)
            share = float8_share(code, MOST, ROWS, PEERS)
            value = share * _widened(scale, KIND)
        else:
            level = tl.load(coded + codes + number, mask=mask, other=0).to(tl.int8, bitcast=True)
            share = tl.div_rn(level.to(tl.float32), tl.full((ROWS, PEERS), MOST, tl.float32))
            value = share * _widened(scale, KIND)
        made = _narrowed(value, KIND)
        tl.store(wrong, 1, mask=bad == INFINITY)
    tl.store(paged, made, mask=mask & (slot >= 0))
