"""A prompt that a node, or one process, has encoded on disk, and a device that decodes it."""

from hexkv.contracts.chunk_cache._base import soon
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.kernels.payloads import SupportsDevicePlanes
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import (
    Finished,
    Namespace,
    Span,
    frame_bytes,
)
from layered import DEEP, FULL, PROMPT, smooth
from nodes import PATIENT, Node
from processes import until
from rigging import CHUNK

NAMESPACE = Namespace("deep", DEEP)
FRAME = frame_bytes(DEEP.chunk_bytes(CHUNK))


class Decoding(HeapKV):
    """Decodes what a GPU does by the serde's own code; *took* has the payloads of each call."""

    def __init__(self):
        super().__init__(DEEP, len(PROMPT))
        self.took, self.raw = [], 0

    def scatter(self, spans, layers=None):
        self.raw += len(spans)
        return super().scatter(spans, layers)

    def decodes(self, serde):
        return isinstance(serde, SupportsDevicePlanes)

    def scatter_encoded(self, serde, spans):
        return self.scatter_encoded_layers(serde, spans, range(DEEP.layers))

    @property
    def decoded(self):
        """Layers of chunks."""
        return sum(len(layers) * len(sizes) for layers, sizes in self.took)

    def scatter_encoded_layers(self, serde, spans, layers):
        self.took.append((layers, [len(payload) for _, _, payload in spans]))
        for start, end, payload in spans:
            raw = memoryview(bytearray(DEEP.chunk_bytes(end - start)))
            parts = serde.layer_parts(payload, len(payload), DEEP, end - start)
            for layer in layers:
                first, last = DEEP.layer_span(layer, end - start)
                part = payload[slice(*parts[layer])]
                serde.decode_layer(part, layer, DEEP, end - start, raw[first:last])
            super().scatter([Span(start, end, raw)], layers)
        return Finished()


def tiers(root, serde):
    memory = {"store": "memory", "budget": 12 * FRAME}
    return [memory, {"store": "disk", "settings": {"root": str(root / serde)}, "serde": serde}]


def node_of(root, serde, kind=Node):
    return kind(root, frame=FRAME, tiers=tiers(root, serde))


def alone(root, serde):
    """An engine with tiers of its own."""
    wanted = {"pool": {"bytes": 32 * FRAME}, "tiers": tiers(root, serde), "deadlines": PATIENT}
    return build(load(environ={}, overrides=wanted | {"chunk": {"size": CHUNK}}), NAMESPACE)


def over(node):
    return node.engine(NAMESPACE, chunk={"size": CHUNK})


def stored(engine):
    """Store the prompt; from now on only the disk has it."""
    assert engine.store(PROMPT, smooth()).stored_tokens == FULL
    only_on_disk(engine)


def only_on_disk(engine):
    assert engine.flush(60)
    engine._chunks.clear(None, ["memory"], soon())


def loaded(engine, how, device):
    """Load the prompt; return the result."""
    if how == "layers":
        with engine.retrieve_layers(PROMPT, device) as layers:
            assert [*layers] == [*range(DEEP.layers)]
        return layers.result()
    if how == "prefetched":
        engine.prefetch("a", PROMPT)
        until(lambda: engine.prefetch("a", PROMPT) is not None)
    return engine.retrieve(PROMPT, device, lookup_id="a" if how == "prefetched" else None)


def keys(engine):
    return [spec.key for spec in wanted(engine)]


def wanted(engine):
    """The full chunks of the prompt."""
    prompt = engine._naming.prompt(PROMPT, None)
    return prompt.part(0, prompt.full).specs()


def took(engine, how):
    """What a device got of the prompt from the disk, and then from memory."""
    found = []
    for tier in ("disk", "memory"):
        device = Decoding()
        got = loaded(engine, how, device)
        assert (got.hit_tokens, dict(got.tiers)) == (FULL, {tier: FULL})
        sizes = sorted(str((layers, size)) for layers, some in device.took for size in some)
        found.append((device.memory, device.raw, sizes))
    only_on_disk(engine)
    return found
