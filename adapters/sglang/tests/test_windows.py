"""Windows on SGLang's host memory keep the contract, in every order of its dimensions."""

from importlib.util import find_spec

import pytest
import torch

from devices.recorded_driver import Beside, Recording
from hexkv.adapters.sglang.pages.devices import copy_layers
from hexkv.adapters.sglang.pages.pools import memory_of, window_on
from hexkv.contracts.device import DeviceContract
from hexkv.kernels import PagedMemory
from hexkv.kernels.dtypes import bits, torch_dtype
from hexkv.kernels.gpu import fused
from hexkv.kernels.gpu.staging import DeviceStaging
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


VIEWS = {"cat", "view", "slice", "alias", "detach", "select", "transpose", "as_strided"}
"""What torch does on the host, without a launch, a copy or a wait."""


def test_held_pages_of_all_loads_are_a_launch_and_a_copy_of_each_group_of_layers(monkeypatch):
    """From wherever in the pool each of them is held; other pages stay as they are."""
    layout = KVLayout.attention(DType.BFLOAT16, layers=12, heads=2, key_width=8, value_width=4)
    into, order, groups = (7, 3, 0, 8, 2), [4, 1, 3, 2, 5], 5  # of 1, 1, 2, 4 and 4 layers
    size = layout.chunk_bytes(PAGE)
    held = torch.randint(256, (6, size + 64), dtype=torch.uint8)
    payloads = [memoryview(held.numpy()).cast("B")[at * (size + 64) :][:size] for at in order]
    slots = [torch.arange(page * PAGE, (page + 1) * PAGE) for page in into]
    loads = [(torch.cat(slots[:2]), payloads[:2]), (torch.cat(slots[2:]), payloads[2:])]
    pool = [[each[:, 0].contiguous() for each in planes(9)] for _ in range(12)]

    def queued(layer, event):
        assert event is None
        rows = [held[at][slice(*layout.layer_span(layer, PAGE))] for at in order]
        for row, page in zip(rows, into, strict=True):
            flat = [plane[page].flatten() for plane in pool[layer]]
            assert torch.equal(torch.cat(flat).view(torch.uint8), row)
        assert not any(plane[[1, 4, 5, 6]].any() for plane in pool[layer])

    class Ready:
        def synchronize(self):
            pass

    copy_layers(PagedMemory(layout, pool), loads, Ready(), queued)
    if find_spec("triton") is None:
        return  # it exists for Linux only
    driver = Recording()
    staging = DeviceStaging(driver)
    monkeypatch.setattr(fused, "staging_on", lambda device: staging)
    memory = PagedMemory(layout, pool, fused=True)
    for tables in (2 + groups, 1 + groups):  # of planes once, of slots, of each group's chunks
        driver.counts.clear()
        with Beside() as beside:
            copy_layers(memory, loads, Ready(), lambda layer, event: None)
        assert set(beside.names) <= VIEWS
        shapes = 2  # of rows: values are half as wide as keys
        assert driver.counts["launches"] == groups * shapes
        assert (driver.counts["copies"], driver.counts["tables"]) == (groups, tables)
        assert not driver.counts["synchronisations"]
        assert driver.counts["bytes in"] == size * len(order)
