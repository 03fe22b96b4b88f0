"""Windows on SGLang's host memory keep the contract, in every order of its dimensions."""

import pytest
import torch

from hexkv.adapters.sglang.pages.devices import DevicePages, PageCopies
from hexkv.adapters.sglang.pages.pools import memory_of, window_on
from hexkv.contracts.device import DeviceContract
from hexkv.kernels.dtypes import bits, torch_dtype
from hexkv.ports import DType, InvalidRequest, KVLayout, LayoutMismatch

PAGE, PAGES = 4, 28
LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=8, value_width=4)
PLACES = (*range(26, 13, -1), *range(13))


class Raw:
    """The memory as integers, ``[pages, layers, tokens, heads, width]`` for each plane."""

    def __init__(self, planes, memory):
        self._planes = planes
        self._memory = memory

    def _row(self, layer, plane, at):
        return self._planes[plane][PLACES[at // PAGE], layer, at % PAGE]

    def get(self, layer, plane, position):
        return self._row(layer, plane, position).contiguous().numpy().tobytes()

    def put(self, layer, plane, position, row):
        there = self._row(layer, plane, position)
        there.copy_(torch.frombuffer(bytearray(row), dtype=there.dtype).view(there.shape))

    def everything(self):
        return b"".join(memory.numpy().tobytes() for memory in self._memory)


class TestPagesFirst(DeviceContract):
    layout = LAYOUT
    order = (0, 1, 2, 3, 4)
    """Where each of pages, layers, tokens, heads and width lies in memory."""

    @pytest.fixture
    def both(self):
        word, memory, planes = bits(self.layout.dtype), [], []
        for plane in self.layout.groups[0].planes:
            sizes = (PAGES, self.layout.layers, PAGE, plane.heads, plane.width)
            memory.append(torch.zeros([sizes[axis] for axis in self.order], dtype=word))
            planes.append(memory[-1].permute([self.order.index(axis) for axis in range(5)]))
        given = [plane.view(torch_dtype(self.layout.dtype)) for plane in planes]
        return window_on(memory_of(self.layout, given), PLACES), Raw(planes, memory)

    @pytest.fixture
    def device(self, both):
        return both[0]

    @pytest.fixture
    def raw(self, both):
        return both[1]


@pytest.mark.thorough
class TestLayersFirst(TestPagesFirst):
    order = (1, 0, 2, 3, 4)


@pytest.mark.thorough
class TestTokensBeforeLayers(TestPagesFirst):
    order = (0, 2, 1, 3, 4)


@pytest.mark.thorough
class TestHeadsFirst(TestPagesFirst):
    order = (0, 3, 2, 1, 4)


@pytest.mark.thorough
class TestLatent(TestPagesFirst):
    layout = KVLayout.latent(DType.FLOAT8_E4M3, layers=2, latent_width=5, rope_width=3)


def planes(pages=2, dtype=torch.bfloat16):
    return [torch.zeros(pages, 3, PAGE, 2, width, dtype=dtype) for width in (8, 4)]


def test_what_is_not_shaped_like_the_layout_is_refused():
    with pytest.raises(LayoutMismatch, match="plane 'v'"):
        memory_of(LAYOUT, [planes()[0], planes()[0]])
    with pytest.raises(LayoutMismatch, match="float32"):
        memory_of(LAYOUT, planes(dtype=torch.float32))
    with pytest.raises(LayoutMismatch, match="planes"):
        memory_of(LAYOUT, planes()[:1])
    with pytest.raises(InvalidRequest, match="not in"):
        window_on(memory_of(LAYOUT, planes()), [2])


def test_held_pages_are_copied_layer_by_layer_into_the_device():
    """From wherever in the pool each of them is held; its other pages stay as they are."""
    pool = [[each[:, layer].contiguous() for each in planes(9)] for layer in range(3)]
    memory = memory_of(LAYOUT, [torch.stack(each, 1) for each in zip(*pool, strict=True)])
    size, order = LAYOUT.chunk_bytes(PAGE), [4, 0, 2, 1, 5]
    held = torch.randint(256, (6, size + 64), dtype=torch.uint8)
    payloads = [memoryview(held.numpy()).cast("B")[at * (size + 64) :][:size] for at in order]
    slots = torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in (7, 3, 0, 8, 2)])
    copies = PageCopies(DevicePages(LAYOUT, pool, PAGE, memory), slots, payloads)
    for layer in range(3):
        copies.copy(layer)
        rows = [held[at][slice(*LAYOUT.layer_span(layer, PAGE))] for at in order]
        for row, page in zip(rows, (7, 3, 0, 8, 2), strict=True):
            flat = [plane[page].flatten() for plane in pool[layer]]
            assert torch.equal(torch.cat(flat).view(torch.uint8), row)
        assert not any(plane[[1, 4, 5, 6]].any() for plane in pool[layer])
