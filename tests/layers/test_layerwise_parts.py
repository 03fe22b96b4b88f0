"""Encoded chunks read and decoded layer by layer: what arrives, and what is refused."""

from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dict_store import ScanningStore
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.doubles import ManualClock, RecordingTelemetry, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import CRC32, PARTS, FrameCodec, part_span
from hexkv.core.memory.pool import BlockPool
from hexkv.core.tiers.read.encoding import encode, open_into
from hexkv.core.tiers.read.heads import Head
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.kernels.coding.choosing import Choice
from hexkv.plugins.threads import Threads
from hexkv.ports import PAGE, ChunkSpec, CounterName, DType, KVLayout, Span, frame_bytes
from layered import (
    DEEP,
    FULL,
    PROMPT,
    Ranged,
    Spans,
    deep,
    empty,
    memory,
    same_layer,
    settled,
    smooth,
)
from media.plain_serde import PlainSerde
from rigging import CHUNK, Heap, chosen, tier

pytestmark = pytest.mark.usefixtures("one_by_one")

VERY_DEEP = KVLayout.attention(DType.FLOAT16, layers=PARTS + 3, heads=4, key_width=8)
PLAIN = PlainSerde()


def parts_on(rig, key, medium):
    codec = rig.engine._chunks.stack.runtime.codec
    return codec.peek(memoryview(medium[key])).parts


def load(rig, truth=None):
    truth = truth or smooth()
    target = empty(PROMPT, DEEP)
    with rig.engine.retrieve_layers(PROMPT, target) as layers:
        for layer in layers:
            assert same_layer(target, truth, layer, layers.hit_tokens)
        got = layers.result()
    assert target.agrees(truth, got.hit_tokens)
    return got


class Stage:
    """A chunk that a serde encoded into a frame of its own."""

    def __init__(self, serde, layout):
        size = layout.chunk_bytes(CHUNK)
        self.pool = BlockPool(Heap(2 * frame_bytes(size)), frame_bytes(size), executor=Threads())
        telemetry, clock = RecordingTelemetry(), ManualClock()
        serdes = {serde.name: serde}
        self.runtime = TierRuntime(
            pool=self.pool,
            codec=FrameCodec(CRC32),
            clock=clock,
            executor=Threads(),
            telemetry=telemetry,
            serdes=serdes,
        )
        self.key = chunk_key("one")
        self.spec = ChunkSpec(self.key, "identity", layout, CHUNK)
        with self.block() as block:
            device = smooth(PROMPT[:CHUNK], layout)
            device.gather([Span(0, CHUNK, block.payload)])
            self.frame = encode(self.runtime, self.key, block, serde.name)
        self.header = self.runtime.codec.peek(self.frame)
        self.index = PAGE + serde.index_bytes(layout)

    def block(self):
        block = self.pool.lease(self.spec.raw_bytes, "test", deadline())
        block.spec = self.spec
        return block

    def whole(self):
        with self.block() as block:
            assert open_into(self.runtime, self.frame, self.key, block) is None
            return bytes(block.payload)

    def head(self):
        return Head.of(self.runtime, self.frame[: self.index], self.spec)

    def part(self, index):
        return self.frame[slice(*part_span(self.header.parts, index))]


STAGES = {
    f"{serde.name} {layout.layers}": Stage(serde, layout)
    for serde in (PlainSerde(), ZstdSerde(), LossySerde(CacheGen(LEVELS["default"], Choice())))
    for layout in (DEEP, VERY_DEEP)
}
by_stage = each("stage", STAGES.values(), ids=STAGES)


@by_stage
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_parts_in_any_order_give_what_the_whole_frame_gives(stage, data):
    head, count = stage.head(), len(stage.header.parts)
    order = data.draw(st.permutations(range(count)))
    with stage.block() as block:
        for part in order:
            assert head.open(stage.runtime, part, stage.part(part), block, stage.spec)
        assert bytes(block.payload) == stage.whole()


@by_stage
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_bit_that_flips_in_a_part_is_found_in_that_part(stage, data):
    part = data.draw(st.integers(0, len(stage.header.parts) - 1))
    damaged = bytearray(stage.part(part))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    with stage.block() as block:
        block.payload[:] = bytes(len(block.payload))
        assert not stage.head().open(stage.runtime, part, memoryview(damaged), block, stage.spec)
        assert not any(block.payload), "nothing came out of it"


@by_stage
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_beginning_that_is_damaged_or_another_s_begins_no_reading_by_parts(stage, data):
    damaged = bytearray(stage.frame[: stage.index])
    damaged[data.draw(st.integers(0, PAGE - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert Head.of(stage.runtime, memoryview(damaged), stage.spec) is None
    data = stage.frame[: stage.index]
    assert Head.of(stage.runtime, data, stage.spec._replace(key=chunk_key("other"))) is None
    shorter = stage.spec._replace(tokens=CHUNK - 1)
    assert Head.of(stage.runtime, data, shorter) is None


def test_encoded_chunks_are_read_by_layers_each_byte_once(rig):
    store = Spans()
    r = deep(rig, tier("ranges", store, serdes=("plain/1",)))
    assert r.engine.store(PROMPT, smooth()).stored_tokens == FULL
    keys = list(store.medium)
    ends = [PAGE + end for end in parts_on(r, keys[0], store.medium)]
    assert len(ends) == DEEP.layers
    assert load(r).hit_tokens == FULL
    mine = sorted(span for span, key in store.log if key == keys[0])
    assert "whole" not in [span for span, _ in store.log]
    assert [start for start, _ in mine] == [0, *(end for _, end in mine[:-1])]
    assert [end for _, end in mine[1:-1]] == ends[:-1]
    assert mine[-1][1] == len(store.medium[keys[0]])
    assert settled(r)


def test_the_first_layer_of_encoded_chunks_is_given_before_the_last_is_read(rig):
    store, later = Spans(), Event()

    def answer(key, start, into):
        (end, *_) = parts_on(r, key, store.medium)
        assert start + len(into) <= PAGE + end or later.wait(30)
        return Ranged.answer(store, key, start, into)

    r = deep(rig, tier("ranges", store, serdes=("plain/1",)))
    r.engine.store(PROMPT, smooth())
    store.answer = answer
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert next(layers) == 0, "although no later layer is there"
        assert same_layer(target, smooth(), 0, FULL)
        later.set()
        assert list(layers) == list(range(1, DEEP.layers))
    assert target.agrees(smooth(), FULL)


@each("layer", [0, 1, 5, 8])
def test_damage_in_an_encoded_layer_ends_the_hit_and_reaches_no_device(rig, layer):
    store = Spans()
    r = deep(rig, memory(), tier("ranges", store, serdes=("plain/1",)))
    r.engine.store(PROMPT, smooth())
    r.engine.clear(PROMPT, tiers=["memory"])
    key = r.engine.chunk_keys(PROMPT)[4]
    frame = bytearray(store.medium[key])
    frame[PAGE + parts_on(r, key, store.medium)[layer] - 1] ^= 1
    store.medium[key] = bytes(frame)
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        for given in layers:
            assert layers.hit_tokens == (4 * CHUNK if given >= layer else FULL)
            assert same_layer(target, smooth(), given, layers.hit_tokens)
    for given in range(layer, DEEP.layers):
        row = target._row(given, 0)
        assert not any(target.memory[given][0][4 * CHUNK * row :])
    assert r.telemetry.total(CounterName.CORRUPT) == 1
    assert key not in store.medium
    assert settled(r)


def test_encoded_frames_of_one_part_are_read_whole(rig):
    """As they were written before encoded frames had parts, and are by other serdes."""
    store = Spans()
    r = deep(rig, tier("ranges", store, serdes=("plain/1",)))
    r.engine.store(PROMPT, smooth())
    codec = r.engine._chunks.stack.runtime.codec
    for key in r.engine.chunk_keys(PROMPT)[3:5]:
        frame = bytearray(store.medium[key])
        codec.seal(memoryview(frame), codec.open(memoryview(frame))._replace(parts=()))
        store.medium[key] = bytes(frame)
    assert load(r).hit_tokens == FULL
    assert [asked for asked, _ in store.log].count("whole") == 2
    assert r.telemetry.total(CounterName.CORRUPT) == 0


def test_raw_and_encoded_chunks_of_one_tier_are_both_read_by_layers(rig):
    store = Spans()
    r = deep(rig, tier("ranges", store, serdes=("raw", "plain/1")))
    r.engine.store(PROMPT, smooth())
    r.engine.admin.compress(chosen(r.engine, PROMPT[: 5 * CHUNK]), "ranges", "plain/1")
    lengths = {len(frame) for frame in store.medium.values()}
    assert len(lengths) > 1
    store.log.clear()
    assert load(r).hit_tokens == FULL
    assert "whole" not in [asked for asked, _ in store.log]
    assert r.tiers["ranges"].link.tokens_rate is None, "the clock stood still"


def test_a_serde_that_raises_costs_a_whole_read_and_no_worker(rig):
    class Failing(PlainSerde):
        def decode_layer(self, part, layer, layout, tokens, into):
            if layer == 3 and not self.whole:
                raise ZeroDivisionError("a bug")
            super().decode_layer(part, layer, layout, tokens, into)

        whole = False

        def decode(self, payload, layout, tokens, into):
            self.whole = True
            super().decode(payload, layout, tokens, into)

    store = Spans()
    r = deep(rig, tier("ranges", store, serdes=("plain/1",)), serde=Failing())
    r.engine.store(PROMPT, smooth())
    assert load(r).hit_tokens == FULL
    assert settled(r)


def test_encoded_chunks_on_a_disk_are_given_layer_by_layer(rig, tmp_path):
    zstd = ZstdSerde()
    place = tier("disk", DiskStore(tmp_path), serdes=(zstd.name,))
    r = deep(rig, memory(), place, serde=zstd)
    r.engine.store(PROMPT, smooth())
    r.engine.clear(PROMPT, tiers=["memory"])
    assert load(r).tiers == {"disk": FULL}
    assert load(r).tiers == {"memory": FULL}, "as a whole raw chunk"
    target = empty(PROMPT, DEEP)
    assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(smooth(), FULL)


def test_a_store_without_ranges_gives_encoded_chunks_whole(rig):
    r = deep(rig, tier("plain", ScanningStore({}), serdes=("plain/1",)))
    r.engine.store(PROMPT, smooth())
    assert load(r).hit_tokens == FULL
