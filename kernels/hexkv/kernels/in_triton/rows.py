"""Rows of planes into the bytes of chunks and back: all planes of all chunks in one launch."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from hexkv.kernels.transfer import Driver

PLANE_FIELDS = 5
"""Of a plane: its address; in words, how many of a token are before it in a chunk, and from one
block, token and head to the next."""

CHUNK_FIELDS = 3
"""Of a chunk: the address of the part that is moved, which lies there without holes; the place of
its first token in the slots; its tokens."""

ELEMENTS = 128
"""Words of a row that a program moves at a time."""

TILE = 2048
"""Words that it moves at a time: of 64 bits, 16 KiB."""

_WORDS = {1: tl.uint8, 2: tl.int16, 4: tl.int32, 8: tl.int64}


def move(
    driver: Driver,
    planes: torch.Tensor,
    chunks: torch.Tensor,
    slots: torch.Tensor,
    *,
    first: int,
    some: int,
    most: int,
    block: int,
    skipped: int,
    row: int,
    width: int,
    word: int,
    align: int,
    scatter: bool,
) -> None:
    """Queue one launch on the current stream.

    Args:
        driver: of the device.
        planes: ``[planes, PLANE_FIELDS]`` int64, rows of one shape.
        chunks: ``[chunks * CHUNK_FIELDS]`` int64.
        slots: int64: block times tokens in a block, plus the place in it. Nothing is moved of
            those below zero.
        first: number of the first plane.
        some: number of planes.
        most: tokens of the longest chunk.
        block: tokens in a block.
        skipped: words of a token that are in a chunk before the part that is moved.
        row: words of a token in a plane.
        width: words of a head.
        word: bytes of a word.
        align: words to a multiple of which all places are aligned, addresses included.
        scatter: from chunks to planes, and not the other way.
    """
    count = chunks.numel() // CHUNK_FIELDS
    elements = min(ELEMENTS, 1 << (row - 1).bit_length())
    tokens = TILE // elements
    parts = -(-most // tokens) * some * count
    driver.launch(
        _move,
        (min(parts, driver.programs),),
        planes,
        chunks,
        slots,
        first,
        some,
        count,
        most,
        block,
        skipped,
        PLANE=PLANE_FIELDS,
        CHUNK=CHUNK_FIELDS,
        ROW=row,
        WIDTH=width,
        TOKENS=tokens,
        ELEMENTS=elements,
        ALIGN=align,
        WORD=_WORDS[word],
        SCATTER=scatter,
    )


def word_of(planes: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Return the bytes of the widest word of which every row of *planes* consists, and a number.

    Everything is aligned to that number of words: two of the widest are 16 bytes. 0: no word fits.
    """
    if any(plane.dim() != 4 or (plane.shape[3] > 1 and plane.stride(3) != 1) for plane in planes):
        return 0, 0
    counts = [
        count * plane.element_size()
        for plane in planes
        for count, steps in zip(
            (*plane.stride()[:3], plane.shape[3]), (*plane.shape[:3], 2), strict=True
        )
        if steps > 1
    ]
    counts += [plane.data_ptr() for plane in planes]
    found = next(word for word in (16, 8, 4, 2, 1) if all(count % word == 0 for count in counts))
    return min(found, 8), max(1, found // 8)


# A number of one would be compiled in, and be a constant instead of a number on the GPU.
@triton.jit(do_not_specialize=["first", "some", "count", "most", "block", "skipped"])
def _move(
    planes,
    chunks,
    slots,
    first,
    some,
    count,
    most,
    block,
    skipped,
    PLANE: tl.constexpr,
    CHUNK: tl.constexpr,
    ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
    ALIGN: tl.constexpr,
    WORD: tl.constexpr,
    SCATTER: tl.constexpr,
):
    """Move rows, tile by tile; the programs take tiles in turns."""
    tiles = tl.cdiv(most, TOKENS)
    for part in range(tl.program_id(0), tiles * some * count, tl.num_programs(0)):
        line = planes + (part // tiles % some + first) * PLANE
        chunk = chunks + part // tiles // some * CHUNK
        plane = tl.load(line).to(tl.pointer_type(WORD))
        before = tl.load(line + 1) - skipped
        of_block = tl.multiple_of(tl.load(line + 2), ALIGN)
        of_token = tl.multiple_of(tl.load(line + 3), ALIGN)
        of_head = tl.multiple_of(tl.load(line + 4), ALIGN)
        flat = tl.load(chunk).to(tl.pointer_type(WORD))
        place = tl.load(chunk + 1)
        tokens = tl.load(chunk + 2)
        plane = tl.multiple_of(plane, ALIGN * WORD.primitive_bitwidth // 8)
        flat = tl.multiple_of(flat, ALIGN * WORD.primitive_bitwidth // 8)
        token = part % tiles * TOKENS + tl.arange(0, TOKENS)
        slot = tl.load(slots + place + token, mask=token < tokens, other=-1)
        # Nothing is read or written at an invalid slot, whatever address it has.
        there = tl.multiple_of(slot // block * of_block + slot % block * of_token, ALIGN)
        here = tl.multiple_of(before * tokens + token.to(tl.int64) * ROW, ALIGN)
        for start in tl.static_range(0, ROW, ELEMENTS):
            element = start + tl.arange(0, ELEMENTS)
            inside = element // WIDTH * of_head + element % WIDTH
            mask = (slot >= 0)[:, None] & (element < ROW)[None, :]
            paged = plane + (there[:, None] + inside[None, :])
            dense = flat + (here[:, None] + element[None, :])
            if SCATTER:
                tl.store(paged, tl.load(dense, mask=mask, eviction_policy="evict_first"), mask=mask)
            else:
                tl.store(dense, tl.load(paged, mask=mask), mask=mask)
