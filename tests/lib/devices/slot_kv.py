"""A correct window on paged memory, cut into small steps so that each can be broken alone."""

from __future__ import annotations

import pytest

from hexkv.contracts.device import DeviceContract, Holed
from hexkv.ports import DType, Finished, InvalidRequest, KVLayout

BLOCK, BLOCKS = 4, 9


class SlotKV:
    """A DeviceKV over pages of a few slots."""

    blocks = BLOCKS

    def __init__(self, layout, slots):
        self.layout = layout
        self.slots = slots
        self.memory = [
            [bytearray(self.blocks * BLOCK * self.row(plane)) for plane in planes]
            for planes in layout.planes
        ]

    @property
    def tokens(self):
        return len(self.slots)

    def row(self, plane):
        return plane.heads * plane.width * self.layout.dtype.itemsize

    def gather(self, spans, layers=None):
        chosen = self.check(spans, layers, write=True)
        self.gather_all(spans, chosen)
        return self.transfer()

    def gather_all(self, spans, layers):
        for start, end, data in spans:
            for place, (layer, plane, position) in self.places(start, end, layers):
                data[place] = self.load(layer, plane, position)

    def scatter(self, spans, layers=None):
        chosen = self.check(spans, layers, write=False)
        self.scatter_all(spans, chosen)
        return self.transfer()

    def scatter_all(self, spans, layers):
        for start, end, data in spans:
            for place, (layer, plane, position) in self.places(start, end, layers):
                if self.slots[position] >= 0:
                    self.keep(layer, plane, position, data[place])

    def transfer(self):
        return Finished()

    def check(self, spans, layers, *, write):
        chosen = range(self.layout.layers) if layers is None else layers
        if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= self.layout.layers:
            raise InvalidRequest("no run of layers")
        for span in spans:
            self.check_span(span, write=write)
        return chosen

    def check_span(self, span, *, write):
        start, end, data = span
        if not 0 <= start <= end <= self.tokens:
            raise InvalidRequest("outside of the window")
        if not data.c_contiguous or data.nbytes != self.layout.chunk_bytes(end - start):
            raise InvalidRequest("another size")
        if write and data.readonly:
            raise InvalidRequest("read-only")
        if write and any(slot < 0 for slot in self.slots[start:end]):
            raise InvalidRequest("a position without a place")

    def places(self, start, end, layers):
        """``(slice of the chunk, (layer, plane, position))`` of every row of a span."""
        for layer in layers:
            at = self.layout.layer_span(layer, end - start)[0]
            for index, plane in enumerate(self.layout.planes[layer]):
                for position in range(start, end):
                    yield slice(at, at + self.row(plane)), (layer, index, position)
                    at += self.row(plane)

    def where(self, layer, plane, slot):
        row = self.row(self.layout.planes[layer][plane])
        return slice(slot * row, (slot + 1) * row)

    def load(self, layer, plane, position):
        return self.memory[layer][plane][self.where(layer, plane, self.slots[position])]

    def keep(self, layer, plane, position, row):
        self.memory[layer][plane][self.where(layer, plane, self.slots[position])] = row


class BlockwiseKV(SlotKV):
    """The same, and nobody may look into a block."""

    blocks = 27

    def check_span(self, span, *, write):
        super().check_span(span, write=write)
        if span.start % BLOCK or span.end % BLOCK:
            raise InvalidRequest("a block is cut through")


class RawSlots:
    def __init__(self, layout, kv, slots):
        self.layout = layout
        self.kv = kv
        self.slots = slots

    def _place(self, layer, plane, position):
        shape = self.layout.planes[layer][plane]
        row = shape.heads * shape.width * self.layout.dtype.itemsize
        return slice(self.slots[position] * row, (self.slots[position] + 1) * row)

    def get(self, layer, plane, position):
        return bytes(self.kv.memory[layer][plane][self._place(layer, plane, position)])

    def put(self, layer, plane, position, row):
        self.kv.memory[layer][plane][self._place(layer, plane, position)] = row

    def everything(self):
        return b"".join(memory for planes in self.kv.memory for memory in planes)


class SlotContract(DeviceContract):
    Make = SlotKV
    layout = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=2)
    slots = [block * BLOCK + at for block in (5, 1, 8, 0, 6, 3, 7) for at in range(BLOCK)][:-1]

    @pytest.fixture
    def device(self):
        return self.Make(self.layout, list(self.slots))

    @pytest.fixture
    def raw(self, device):
        return RawSlots(self.layout, device, self.slots)

    @pytest.fixture
    def holed(self):
        slots = [-1 if at in (6, 7, 13) else slot for at, slot in enumerate(self.slots)]
        device = self.Make(self.layout, slots)
        return Holed(device, RawSlots(self.layout, device, slots), {6, 7, 13})


class BlockwiseContract(SlotContract):
    """Four tokens are moved together, or not at all."""

    Make = BlockwiseKV
    layout = KVLayout.attention(DType.UINT8, layers=2, heads=1, key_width=1)
    slots = tuple(block * BLOCK + at for block in range(25, -1, -1) for at in range(BLOCK))

    @pytest.fixture
    def unit(self):
        return BLOCK

    @pytest.fixture
    def holed(self):
        holes = range(5 * BLOCK, 7 * BLOCK)
        slots = [-1 if at in holes else slot for at, slot in enumerate(self.slots)]
        device = self.Make(self.layout, slots)
        return Holed(device, RawSlots(self.layout, device, slots), holes)
