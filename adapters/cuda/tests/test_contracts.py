"""Windows and memory keep their contracts: on a GPU where there is one, else over plain memory."""

import pytest
import torch

from hexkv.adapters.cuda.pinned import PinnedMemory
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.contracts.device import DeviceContract, Holed
from hexkv.contracts.memory import MemoryContract
from hexkv.contracts.plugin import PluginContract
from hexkv.kernels import NOWHERE, opaque_layout
from hexkv.ports import DType, KVLayout

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu]),
]
LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=8, value_width=4)


class RawTensors:
    """The back door to tensors of 16-bit words; *place* gives the tensor and where in it."""

    def __init__(self, on, tensors, place):
        self.on = on
        self.tensors = tensors
        self.place = place

    def get(self, layer, plane, position):
        tensor, where = self.place(layer, plane, position)
        return tensor[where].cpu().contiguous().numpy().tobytes()

    def put(self, layer, plane, position, row):
        self.on.fence()  # as an engine does, before it computes where KV is being copied
        tensor, where = self.place(layer, plane, position)
        old = tensor[where]
        tensor[where] = (
            torch.frombuffer(bytearray(row), dtype=old.dtype).view(old.shape).to(old.device)
        )

    def everything(self):
        return b"".join(tensor.cpu().contiguous().numpy().tobytes() for tensor in self.tensors)


class Windows(DeviceContract):
    @pytest.fixture(params=DEVICES)
    def on(self, request):
        return request.param

    @pytest.fixture
    def both(self, on):
        return self.make(CudaKV(on))

    @pytest.fixture
    def device(self, both):
        return both[0]

    @pytest.fixture
    def raw(self, both):
        return both[1]


def words(on, shape):
    """``[layer][plane]`` of zeros as integers, and the same memory as the layout's numbers."""
    made = [
        [torch.zeros(shape(plane), dtype=torch.int16, device=on.device) for plane in planes]
        for planes in LAYOUT.planes
    ]
    return made, [[word.view(torch.bfloat16) for word in given] for given in made]


@pytest.mark.thorough
class TestPaged(Windows):
    block = 4

    def slots(self):
        return [b * self.block + at for b in (5, 2, 9, 0, 7, 3, 8) for at in range(self.block)][:-1]

    def window(self, on, slots):
        made, pages = words(on, lambda plane: (10, self.block, plane.heads, plane.width))

        def place(layer, plane, at):
            return made[layer][plane], divmod(slots[at], self.block)

        raw = RawTensors(on, [word for given in made for word in given], place)
        return on.paged(LAYOUT, pages, slots), raw

    def make(self, on):
        return self.window(on, self.slots())

    @pytest.fixture
    def holed(self, on):
        slots = [-1 if at in (5, 6, 13) else slot for at, slot in enumerate(self.slots())]
        return Holed(*self.window(CudaKV(on), slots), {5, 6, 13})


@pytest.mark.thorough
class TestContiguous(Windows):
    def make(self, on):
        made, tensors = words(on, lambda plane: (1, plane.heads, 29, plane.width))

        def place(layer, plane, at):
            return made[layer][plane], (0, slice(None), at)

        raw = RawTensors(on, [word for given in made for word in given], place)
        return on.contiguous(LAYOUT, tensors), raw


@pytest.mark.thorough
class TestWholeBlocks(Windows):
    """Four tokens are moved together; a token's share of a block is a run of its bytes."""

    block, share = 4, 6
    order = (*range(25, 12, -1), *range(13))

    @pytest.fixture
    def unit(self):
        return self.block

    def window(self, on, blocks):
        pages = [
            torch.zeros(27, self.block, self.share, dtype=torch.uint8, device=on.device)
            for _ in range(2)
        ]

        def place(layer, plane, at):
            return pages[layer], (blocks[at // self.block], at % self.block)

        layout = opaque_layout(self.block, [self.block * self.share] * 2)
        return on.blocks(layout, pages, blocks, self.block), RawTensors(on, pages, place)

    def make(self, on):
        return self.window(on, list(self.order))

    @pytest.fixture
    def holed(self, on):
        blocks = [NOWHERE if at in (5, 6) else block for at, block in enumerate(self.order)]
        holes = range(5 * self.block, 7 * self.block)
        return Holed(*self.window(CudaKV(on), blocks), holes)


class TestPinnedMemory(MemoryContract):
    """As it comes on this machine."""

    @pytest.fixture
    def provider(self):
        return PinnedMemory.near(0)


@pytest.mark.thorough
class TestNearMemory(MemoryContract):
    """Taken from a NUMA node, and shown to a driver."""

    class Driver:
        def register(self, address, size):
            pass

        def unregister(self, address):
            pass

    @pytest.fixture
    def provider(self):
        return PinnedMemory(node=0, registrar=self.Driver())


class TestPlugin(PluginContract):
    entry_point = "cuda"
