"""What layer-by-layer tests share: a prompt, devices, and stores that read ranges."""

import random

from dict_store import ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.frames.codec import layer_parts, part_span
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import (
    DType,
    Failed,
    Hit,
    KVLayout,
    Miss,
    Namespace,
    StoreError,
    frame_bytes,
)
from media.plain_serde import PlainSerde
from rigging import CHUNK, LAYOUT, tier

PROMPT = random.Random(3).choices(range(50_000), k=10 * CHUNK + 5)
FULL = 10 * CHUNK
LAYERS = list(range(LAYOUT.layers))
SPANS = [part_span(layer_parts(LAYOUT, CHUNK), i) for i in LAYERS]


def computed(tokens=PROMPT, layout=LAYOUT):
    return HeapKV(layout, len(tokens)).compute(tokens)


def empty(tokens=PROMPT, layout=LAYOUT):
    return HeapKV(layout, len(tokens))


class Ranged(ScanningStore):
    """A store that reads ranges, and notes in one list what it was asked and when."""

    def __init__(self, medium=None, log=None):
        super().__init__({} if medium is None else medium)
        self.log = [] if log is None else log

    def read(self, keys, sink, deadline):
        self.log.extend(("whole", key) for key in keys)
        return super().read(keys, sink, deadline)

    def read_range(self, key, start, into, deadline):
        self._check()
        self.log.append((self.layer(start, into), key))
        return self.answer(key, start, into)

    def answer(self, key, start, into):
        frame = self.fetch(key)
        if frame is None:
            return Miss()
        if start + len(into) > len(frame):
            return Failed(StoreError("beyond the end"))
        into[:] = frame[start : start + len(into)]
        return Hit(len(into))

    @staticmethod
    def layer(start, into):
        return next((i for i, (_, end) in enumerate(SPANS) if end == start + len(into)), None)


def memory():
    return tier("memory", MemoryStore(ManualClock()))


def disk(path):
    return tier("disk", DiskStore(path))


def layerwise(rig, target, tokens=PROMPT, **options):
    """Retrieve layer by layer; each layer must be in the device when it is given."""
    truth = computed(tokens)
    with rig.engine.retrieve_layers(tokens, target, **options) as layers:
        for layer in layers:
            assert same_layer(target, truth, layer, layers.hit_tokens, options.get("skip", 0))
        return layers.result()


def same_layer(one, other, layer, end, start=0):
    for plane in range(len(one.memory[layer])):
        row = one._row(layer, plane)
        part = slice(start * row, end * row)
        if one.memory[layer][plane][part] != other.memory[layer][plane][part]:
            return False
    return True


class Growing(HeapKV):
    """A device whose layers are computed one after another: the later ones hold rubbish."""

    def __init__(self, tokens=PROMPT):
        super().__init__(LAYOUT, len(tokens))
        self.truth = computed(tokens)

    def compute_layer(self, layer):
        for plane, memory in enumerate(self.truth.memory[layer]):
            self.memory[layer][plane][:] = memory


def store_layerwise(rig, tokens=PROMPT, **options):
    device = Growing(tokens)
    with rig.engine.store_layers(tokens, device, **options) as layers:
        for layer in LAYERS:
            device.compute_layer(layer)
            layers.layer_done(layer)
        return layers.result()


def settled(rig):
    """Whether nothing is held that should not be, once no worker has anything left to do."""
    return rig.at_rest()


def keys_of(rig, tokens=PROMPT):
    return rig.engine._naming.prompt(tokens, None).keys


DEEP = KVLayout.attention(DType.FLOAT16, layers=9, heads=8, key_width=16)

PLAIN = PlainSerde()


def smooth(tokens=PROMPT, layout=DEEP):
    """KV that is easily made smaller, and different in every layer, plane and token."""
    device = HeapKV(layout, len(tokens))
    for layer, planes in enumerate(device.memory):
        for plane, content in enumerate(planes):
            row = device._row(layer, plane)
            for at in range(len(tokens)):
                element = bytes([at % 251, 0x30 + (layer + plane) % 8])
                content[at * row : (at + 1) * row] = element * (row // 2)
    return device


class Spans(Ranged):
    """Notes which range it was asked for."""

    @staticmethod
    def layer(start, into):
        return start, start + len(into)


def deep(rig, *tiers, serde=PLAIN, **options):
    """An engine of many layers, and a serde."""
    return rig(
        tiers,
        frame=frame_bytes(DEEP.chunk_bytes(CHUNK)),
        namespace=Namespace("deep", DEEP),
        serdes={serde.name: serde},
        **options,
    )
