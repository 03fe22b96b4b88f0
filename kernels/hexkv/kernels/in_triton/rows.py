"""Paged rows into the bytes of a chunk and back: all layers of a span in one launch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hexkv.ports import LayoutMismatch

TOKENS, ELEMENTS = 16, 128
"""The part that one step of a program moves. With 64-bit words that is 16 KiB."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORDS = {1: tl.uint8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
_FIELDS = 7


class _Plane(NamedTuple):
    """One line of the table that the kernel reads. Everything but the address is in words."""

    address: int
    before: int
    """Words of a token in the planes before this one: times the tokens, that is its place."""
    heads: int
    width: int
    block: int
    token: int
    head: int


class Rows:
    """Planes of ``[blocks, block, heads, width]`` that are moved together.

    The planes lie in a chunk one after the other, each as ``[token][head][width]``. They may
    have any strides but within ``width``, and widths of their own.
    """

    def __init__(self, planes: Sequence[torch.Tensor]) -> None:
        """Use *planes*, of one device and one number of tokens in a block.

        Raises:
            LayoutMismatch: the elements of a row are not side by side.
        """
        self._planes = list(planes)  # the table has their addresses, which keep nothing alive
        word = word_of(planes)
        if not word:
            raise LayoutMismatch("the elements of a head are not side by side in memory")
        self.word = word
        """Bytes that are moved at a time; chunks begin at multiples of it."""
        self._device = planes[0].device
        self._block = planes[0].shape[1]
        self._before = [0]
        table: list[_Plane] = []
        for plane in planes:
            share = word // plane.element_size()
            heads, width = plane.shape[2], plane.shape[3] // share
            blocks, tokens, rows = (stride // share for stride in plane.stride()[:3])
            before = self._before[-1]
            table.append(_Plane(plane.data_ptr(), before, heads, width, blocks, tokens, rows))
            self._before.append(before + heads * width)
        self._table = torch.tensor(table, dtype=torch.int64)

    def gather(self, slots: torch.Tensor, into: torch.Tensor, planes: range) -> None:
        """Queue the copy of *planes* at *slots* to *into*.

        Args:
            slots: ``[tokens]`` int64, on the CPU or the planes' device: block times tokens in a
                block, plus the place in it. Those below zero are skipped.
            into: ``[bytes]`` uint8 that the device can reach, its own or pinned: the part of a
                chunk that these planes fill, aligned as they are.
            planes: a run of them.
        """
        self._move(slots, into, planes, scatter=False)

    def scatter(self, slots: torch.Tensor, data: torch.Tensor, planes: range) -> None:
        """Queue the copy of *data* to *planes* at *slots*; see :meth:`gather`."""
        self._move(slots, data, planes, scatter=True)

    def _move(
        self, slots: torch.Tensor, flat: torch.Tensor, planes: range, *, scatter: bool
    ) -> None:
        tokens = len(slots)
        if not tokens or not planes:
            return
        words = flat.view(_INTEGERS[self.word])
        if len(words) != tokens * (self._before[planes.stop] - self._before[planes.start]):
            raise ValueError(f"{flat.numel()} bytes are not {tokens} tokens of {planes}")
        # The table is sent with each launch, in its stream: so no other work need be waited for,
        # and its memory is not used again before the launch is done.
        table = self._table[planes.start : planes.stop].to(self._device, non_blocking=True)
        grid = (len(planes), triton.cdiv(tokens, TOKENS))
        _move[grid](
            table,
            slots.to(self._device, non_blocking=True),
            words,
            tokens,
            self._block,
            self._before[planes.start],
            FIELDS=_FIELDS,
            WORD=_WORDS[self.word],
            TOKENS=TOKENS,
            ELEMENTS=ELEMENTS,
            SCATTER=scatter,
            enable_fp_fusion=False,
        )


def word_of(planes: Sequence[torch.Tensor]) -> int:
    """Return the bytes of the widest word of which every row of *planes* consists; 0 if none."""
    if any(plane.dim() != 4 or (plane.shape[3] > 1 and plane.stride(3) != 1) for plane in planes):
        return 0
    counts = [
        count * plane.element_size()
        for plane in planes
        for count, steps in zip(
            (*plane.stride()[:3], plane.shape[3]), (*plane.shape[:3], 2), strict=True
        )
        if steps > 1
    ]
    counts += [plane.data_ptr() for plane in planes]
    return next(word for word in (8, 4, 2, 1) if all(count % word == 0 for count in counts))


@triton.jit(do_not_specialize=["tokens"])
def _move(
    table,
    slots,
    flat,
    tokens,
    block,
    skipped,
    FIELDS: tl.constexpr,
    WORD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
    SCATTER: tl.constexpr,
):
    """Move ``TOKENS`` tokens of one plane."""
    line = table + tl.program_id(0) * FIELDS
    plane = tl.load(line).to(tl.pointer_type(WORD))
    before = tl.load(line + 1) - skipped
    heads = tl.load(line + 2)
    width = tl.load(line + 3)
    of_block = tl.load(line + 4)
    of_token = tl.load(line + 5)
    of_head = tl.load(line + 6)
    row = heads * width
    token = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slots + token, mask=token < tokens, other=-1)
    # Nothing is read or written at an invalid slot, whatever address it has.
    there = slot // block * of_block + slot % block * of_token
    here = before * tokens + token * row
    for first in range(0, row, ELEMENTS):
        element = first + tl.arange(0, ELEMENTS)
        inside = element // width * of_head + element % width
        mask = (slot >= 0)[:, None] & (element < row)[None, :]
        paged = plane + there[:, None] + inside[None, :]
        dense = flat + here[:, None] + element[None, :]
        if SCATTER:
            tl.store(paged, tl.load(dense, mask=mask), mask=mask)
        else:
            tl.store(dense, tl.load(paged, mask=mask), mask=mask)
