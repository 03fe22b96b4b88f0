"""The device in plain memory keeps the contract of devices."""

import pytest

from hexkv.contracts.device import DeviceContract
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.ports import DType, KVLayout, LayerGroup, Plane

MIXED = KVLayout(
    DType.BFLOAT16,
    (
        LayerGroup(1, (Plane("latent", 1, 5), Plane("rope", 1, 3))),
        LayerGroup(2, (Plane("k", 2, 4), Plane("v", 2, 4))),
    ),
)


class RawHeap:
    def __init__(self, kv):
        self.kv = kv

    def _place(self, layer, plane, position):
        row = len(self.kv.memory[layer][plane]) // self.kv.tokens
        return self.kv.memory[layer][plane], slice(position * row, (position + 1) * row)

    def get(self, layer, plane, position):
        memory, place = self._place(layer, plane, position)
        return bytes(memory[place])

    def put(self, layer, plane, position, row):
        memory, place = self._place(layer, plane, position)
        memory[place] = row

    def everything(self):
        return b"".join(memory for planes in self.kv.memory for memory in planes)


class TestHeapKV(DeviceContract):
    @pytest.fixture
    def device(self):
        return HeapKV(MIXED, 31)

    @pytest.fixture
    def raw(self, device):
        return RawHeap(device)
