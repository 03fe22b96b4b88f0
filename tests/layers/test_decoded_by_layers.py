"""Encoded chunks go to a device that decodes them layer by layer, and are promoted as they are."""

from weakref import ref

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.ports import Finished, Span, frame_bytes
from layered import DEEP, FULL, PROMPT, Spans, deep, empty, memory, same_layer, settled, smooth
from media.plain_serde import PlainSerde
from rigging import CHUNK, tier

pytestmark = pytest.mark.usefixtures("one_by_one")


class Counting(PlainSerde):
    """Counts the layers that the host decodes."""

    decoded = 0

    def decode_layer(self, part, layer, layout, tokens, into):
        self.decoded += 1
        super().decode_layer(part, layer, layout, tokens, into)


class LayersKV(HeapKV):
    """Decodes single layers by the serde's own code, and counts them."""

    def __init__(self):
        super().__init__(DEEP, len(PROMPT))
        self.took = 0

    def decodes(self, serde):
        return isinstance(serde, PlainSerde)

    def scatter_encoded(self, serde, spans):
        return self.scatter_encoded_layers(serde, spans, range(DEEP.layers))

    def scatter_encoded_layers(self, serde, spans, layers):
        for start, end, payload in spans:
            tokens = end - start
            raw = memoryview(bytearray(DEEP.chunk_bytes(tokens)))
            parts = serde.layer_parts(payload, len(payload), DEEP, tokens)
            for layer in layers:
                first, last = DEEP.layer_span(layer, tokens)
                part = payload[slice(*parts[layer])]
                PlainSerde.decode_layer(serde, part, layer, DEEP, tokens, raw[first:last])
                self.took += 1
            self.scatter([Span(start, end, raw)], layers)
        return Finished()


def brought(r, target, **options):
    with r.engine.retrieve_layers(PROMPT, target, **options) as layers:
        for layer in layers:
            assert same_layer(target, smooth(), layer, layers.hit_tokens)
        return layers.result()


def test_layers_stay_encoded_until_the_device_has_them_and_are_promoted_so(rig):
    store, serde = Spans(), Counting()
    link = tier("ranges", store, serdes=("plain/1",))
    assert deep(rig, link, serde=serde).engine.store(PROMPT, smooth()).stored_tokens == FULL
    size = max(map(len, store.medium.values()))
    again = tier("ranges", Spans(store.medium), serdes=("plain/1",))
    r = deep(rig, memory(), again, serde=serde)
    device = LayersKV()
    assert brought(r, device).hit_tokens == FULL
    assert (device.took, serde.decoded) == (10 * DEEP.layers, 0)
    assert settled(r)
    # From memory, where each takes what it takes on the link.
    assert r.tiers["memory"].index.used <= 10 * size < 10 * frame_bytes(DEEP.chunk_bytes(CHUNK))
    warm = LayersKV()
    assert dict(brought(r, warm).tiers) == {"memory": FULL}
    assert (warm.took, serde.decoded) == (10 * DEEP.layers, 0)
    assert r.engine.retrieve(PROMPT, warm).hit_tokens == FULL
    # Where nothing decodes but the host, so it does.
    raw = empty(PROMPT, DEEP)
    assert brought(r, raw).hit_tokens == FULL
    assert serde.decoded == 10 * DEEP.layers
    assert settled(r)


@pytest.mark.thorough
def test_what_is_prefetched_is_loaded_by_layers_as_it_was_left(rig):
    serde = Counting()
    options = {"slots": 40, "prefetch": PrefetchRules(share=1.0)}
    r = deep(rig, tier("ranges", Spans(), serdes=("plain/1",)), serde=serde, **options)
    assert r.engine.store(PROMPT, smooth()).stored_tokens == FULL
    took = []
    for name in ("before a device was seen", "after it"):
        assert r.engine.prefetch(name, PROMPT) == FULL
        r.engine.flush()
        device = LayersKV()
        assert brought(r, device, lookup_id=name).hit_tokens == FULL
        took.append((device.took, serde.decoded))
    assert took == [(0, 10 * DEEP.layers), (10 * DEEP.layers, 10 * DEEP.layers)]
    assert settled(r)


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, 1, DEEP.layers // 2, DEEP.layers - 1])
@pytest.mark.parametrize("number", [0, 4, 9])
def test_a_part_that_is_damaged_under_way_ends_the_hit_before_its_chunk(rig, part, number):
    store, serde = Spans(), Counting()
    r = deep(rig, tier("ranges", store, serdes=("plain/1",)), serde=serde)
    assert r.engine.store(PROMPT, smooth()).stored_tokens == FULL
    key = list(store.medium)[number]
    frame = bytearray(store.medium[key])
    ends = r.engine._chunks.stack.runtime.codec.peek(memoryview(frame)).parts
    frame[4096 + ends[part] - 1] ^= 1
    store.medium[key] = bytes(frame)
    device = LayersKV()
    with r.engine.retrieve_layers(PROMPT, device) as layers:
        for layer in layers:
            assert same_layer(device, smooth(), layer, layers.hit_tokens)
        assert layers.result().hit_tokens == number * CHUNK
    assert device.agrees(smooth(), number * CHUNK)
    assert serde.decoded == 0
    assert settled(r)


def test_the_device_of_a_retrieve_with_a_prefetch_is_not_kept(rig):
    r = deep(rig, tier("ranges", Spans(), serdes=("plain/1",)))
    r.engine.store(PROMPT, smooth())
    r.engine.prefetch("a", PROMPT)
    device = LayersKV()
    assert r.engine.retrieve(PROMPT, device, lookup_id="a").hit_tokens == FULL
    kept = ref(device)
    del device
    assert kept() is None
