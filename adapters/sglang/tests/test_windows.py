"""Windows on SGLang's host memory keep the contract, in every order of its dimensions."""

import pytest
import torch

from hexkv.adapters.sglang.windows import StackedKV
from hexkv.contracts.device import DeviceContract
from hexkv.kernels.dtypes import bits, torch_dtype
from hexkv.ports import DType, InvalidRequest, KVLayout, LayoutMismatch, Span

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
    def unit(self):
        return PAGE

    @pytest.fixture
    def both(self):
        word, memory, planes = bits(self.layout.dtype), [], []
        for plane in self.layout.groups[0].planes:
            sizes = (PAGES, self.layout.layers, PAGE, plane.heads, plane.width)
            memory.append(torch.zeros([sizes[axis] for axis in self.order], dtype=word))
            planes.append(memory[-1].permute([self.order.index(axis) for axis in range(5)]))
        given = [plane.view(torch_dtype(self.layout.dtype)) for plane in planes]
        return StackedKV(self.layout, given, PLACES), Raw(planes, memory)

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
        StackedKV(LAYOUT, [planes()[0], planes()[0]], [0])
    with pytest.raises(LayoutMismatch, match="float32"):
        StackedKV(LAYOUT, planes(dtype=torch.float32), [0])
    with pytest.raises(LayoutMismatch, match="each plane"):
        StackedKV(LAYOUT, planes()[:1], [0])
    with pytest.raises(InvalidRequest, match="not in"):
        StackedKV(LAYOUT, planes(), [2])


def test_a_span_that_cuts_a_page_is_refused():
    window = StackedKV(LAYOUT, planes(), [0, 1])
    chunk = memoryview(bytearray(LAYOUT.chunk_bytes(2)))
    with pytest.raises(InvalidRequest, match="between pages"):
        window.gather([Span(0, 2, chunk)])
