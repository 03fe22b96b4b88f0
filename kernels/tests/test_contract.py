"""Both device windows keep the contract, over every kind of memory that engines have."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from hexkv.contracts.device import DeviceContract, Holed
from hexkv.kernels import NOWHERE, BlockKV, ContiguousKV, PagedKV, opaque_layout, torch_dtype
from hexkv.kernels.dtypes import bits
from hexkv.ports import DType, KVLayout, LayerGroup, Plane

LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=8, value_width=4)
MIXED = KVLayout(
    DType.FLOAT8_E4M3,
    (
        LayerGroup(1, (Plane("latent", 1, 5), Plane("rope", 1, 3))),
        LayerGroup(2, (Plane("k", 2, 3),)),
    ),
)


class Share(NamedTuple):
    """Some bytes of a block, which are no view of it."""

    page: torch.Tensor
    block: int
    first: torch.Tensor
    second: torch.Tensor


class RawTensors:
    """The back door to tensors: *place* gives the ``[heads, width]`` of a token, as integers."""

    def __init__(self, tensors, place):
        self.tensors = tensors
        self.place = place

    def get(self, layer, plane, position):
        return self.place(layer, plane, position).contiguous().numpy().tobytes()

    def put(self, layer, plane, position, row):
        there = self.place(layer, plane, position)
        there.copy_(torch.frombuffer(bytearray(row), dtype=there.dtype).view(there.shape))

    def everything(self):
        return b"".join(t.contiguous().numpy().tobytes() for planes in self.tensors for t in planes)


class RawShares(RawTensors):
    """The same, where a token has a share of a block's bytes."""

    def get(self, layer, plane, position):
        share = self.place(layer, plane, position)
        return share.page[share[1:]].numpy().tobytes()

    def put(self, layer, plane, position, row):
        share = self.place(layer, plane, position)
        share.page[share[1:]] = torch.frombuffer(bytearray(row), dtype=torch.uint8)


def zeros(layout, shape):
    """``[layer][plane]`` of tensors as integers, and the same memory in the layout's dtype."""
    words = [
        [torch.zeros(shape(plane), dtype=bits(layout.dtype)) for plane in planes]
        for planes in layout.planes
    ]
    return words, [[word.view(torch_dtype(layout.dtype)) for word in given] for given in words]


class Windows(DeviceContract):
    layout = LAYOUT

    @pytest.fixture
    def both(self):
        return self.make()

    @pytest.fixture
    def device(self, both):
        return both[0]

    @pytest.fixture
    def raw(self, both):
        return both[1]


class TestContiguous(Windows):
    def make(self):
        words, tensors = zeros(self.layout, lambda plane: (1, plane.heads, 29, plane.width))
        raw = RawTensors(words, lambda layer, plane, at: words[layer][plane][0, :, at])
        return ContiguousKV(self.layout, tensors), raw


@pytest.mark.thorough
class TestContiguousOfUnlikeLayers(TestContiguous):
    layout = MIXED


@pytest.mark.thorough
class TestTheMiddleOfASequenceWithRoom(Windows):
    """As the adapter for Hugging Face has it: a part of tensors that have room for more."""

    def make(self):
        words, tensors = zeros(self.layout, lambda plane: (1, plane.heads, 40, plane.width))
        raw = RawTensors(words, lambda layer, plane, at: words[layer][plane][0, :, at + 5])
        parts = [[tensor[:, :, 5:36] for tensor in given] for given in tensors]
        return ContiguousKV(self.layout, parts), raw


@pytest.mark.thorough
class TestTokensBeforeHeads(Windows):
    def make(self):
        words, tensors = zeros(self.layout, lambda plane: (1, 29, plane.heads, plane.width))
        raw = RawTensors(words, lambda layer, plane, at: words[layer][plane][0, at])
        return ContiguousKV(self.layout, [[t.transpose(1, 2) for t in g] for g in tensors]), raw


class TestPaged(Windows):
    """Whole blocks, in no order, and a few tokens of one more."""

    block, blocks = 4, 11

    def slots(self):
        return [b * self.block + i for b in (5, 2, 9, 0, 7, 3, 8) for i in range(self.block)][:-1]

    def window(self, slots):
        words, tensors = zeros(
            self.layout, lambda plane: (self.blocks, self.block, plane.heads, plane.width)
        )

        def place(layer, plane, at):
            return words[layer][plane][slots[at] // self.block, slots[at] % self.block]

        return PagedKV(self.layout, tensors, slots), RawTensors(words, place)

    def make(self):
        return self.window(self.slots())

    @pytest.fixture
    def holed(self):
        slots = [-1 if at in (5, 6, 13) else slot for at, slot in enumerate(self.slots())]
        return Holed(*self.window(slots), {5, 6, 13})


@pytest.mark.thorough
class TestPagedOfUnlikeLayers(TestPaged):
    layout = MIXED


@pytest.mark.thorough
class TestPagedWithSlotsInNoOrder(TestPaged):
    def slots(self):
        return [(17 * at + 3) % 44 for at in range(26)]


@pytest.mark.thorough
class TestPagesOfOneToken(TestPaged):
    block = 1
    blocks = 30

    def slots(self):
        return list(range(28, -1, -1))


@pytest.mark.thorough
class TestPagedWithHeadsFirst(TestPaged):
    def window(self, slots):
        words, tensors = zeros(
            self.layout, lambda plane: (self.blocks, plane.heads, self.block, plane.width)
        )

        def place(layer, plane, at):
            return words[layer][plane][slots[at] // self.block, :, slots[at] % self.block]

        pages = [[tensor.transpose(1, 2) for tensor in given] for given in tensors]
        return PagedKV(self.layout, pages, slots), RawTensors(words, place)


class TestOpaqueBlocks(Windows):
    """Blocks of one run of bytes, of other sizes in other layers, in no order."""

    block = 4
    layout = opaque_layout(4, (24, 20))
    places = (*range(26, 13, -1), *range(13))

    @pytest.fixture
    def unit(self):
        return self.block

    def pages(self):
        return [
            torch.zeros(28, 1, size * self.block, dtype=torch.uint8)
            for size in (plane.width for (plane,) in self.layout.planes)
        ]

    def window(self, blocks):
        pages = self.pages()

        def place(layer, plane, at):
            # A token's share of the block's bytes, in the order of its dimensions.
            first, second = pages[layer].shape[1:]
            share = first * second // self.block
            run = torch.arange(at % self.block * share, (at % self.block + 1) * share)
            return Share(pages[layer], blocks[at // self.block], run // second, run % second)

        return BlockKV(self.layout, pages, blocks, self.block), RawShares([pages], place)

    def make(self):
        return self.window(list(self.places))

    @pytest.fixture
    def holed(self):
        blocks = [NOWHERE if at in (5, 6) else block for at, block in enumerate(self.places)]
        return Holed(*self.window(blocks), range(5 * self.block, 7 * self.block))


@pytest.mark.thorough
class TestOpaqueBlocksWithGaps(TestOpaqueBlocks):
    """Blocks whose bytes are not one run, as where heads are outermost in memory."""

    def pages(self):
        return [
            torch.zeros(2, 28, plane.width * self.block // 2, dtype=torch.uint8).transpose(0, 1)
            for (plane,) in self.layout.planes
        ]
