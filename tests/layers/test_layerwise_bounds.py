"""What layer by layer takes: so many layers ahead, so many blocks, so much time."""

from threading import Event

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.io.rules import LaneRules
from hexkv.ports import TimedOut
from layered import (
    FULL,
    LAYERS,
    PROMPT,
    Growing,
    Ranged,
    computed,
    disk,
    empty,
    layerwise,
    memory,
    same_layer,
    settled,
    store_layerwise,
)
from rigging import CHUNK, LAYOUT, tier

pytestmark = pytest.mark.usefixtures("one_by_one")


def test_the_next_layer_is_under_way_when_one_is_given_and_holds_nothing_up(rig):
    """Shown by order alone: nothing in here knows how long anything takes."""
    store, later = Ranged(), Event()
    begun = {layer: Event() for layer in LAYERS}

    def answer(key, start, into):
        layer = store.layer(start, into)
        begun[layer].set()
        assert layer == 0 or later.wait(30)
        return Ranged.answer(store, key, start, into)

    store.answer = answer
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    target = empty()
    target.background = True
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert layers.hit_tokens == FULL
        assert next(layers) == 0, "although no later layer is there"
        assert same_layer(target, computed(), 0, FULL)
        assert begun[1].wait(30)
        assert begun[2].wait(30)
        assert r.tiers["ranges"].reading.pending == 2
        later.set()
        assert list(layers) == [1, 2]
    assert target.agrees(computed(), FULL)
    assert sorted(layer for layer, _ in store.log) == sorted(LAYERS * 10), "each read once"


def test_layers_are_given_to_the_device_one_by_one_and_from_memory_without_a_copy(rig):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    held = r.pool.held_bytes

    class Noting(HeapKV):
        def scatter(self, spans, layers=None):
            assert len(spans) == 10
            seen.append(layers)
            assert r.pool.held_bytes == held
            return super().scatter(spans, layers)

    seen = []
    layerwise(r, Noting(LAYOUT, len(PROMPT)))
    assert seen == [range(i, i + 1) for i in LAYERS]


def test_reading_ahead_is_bounded_in_bytes(rig, monkeypatch):
    monkeypatch.setattr("hexkv.core.tiers.read.ranges._BYTES_AHEAD", 1)
    for task_bytes in (1, 1 << 30):
        monkeypatch.setattr("hexkv.core.tiers.read.ranges._TASK_BYTES", task_bytes)
        one_task_at_a_time(rig)


def one_task_at_a_time(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    lane, most = r.tiers["ranges"].reading, []

    def answer(key, start, into):
        most.append(lane.pending)
        return Ranged.answer(store, key, start, into)

    store.answer = answer
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert set(most) == {1}
    assert sorted(layer for layer, _ in store.log) == sorted(LAYERS * 10)


def test_a_full_queue_makes_reading_ahead_wait_and_loses_nothing(rig, monkeypatch):
    monkeypatch.setattr("hexkv.core.tiers.read.ranges._TASK_BYTES", 1)
    store = Ranged()
    r = rig([tier("ranges", store, lane=LaneRules(workers=1, queue_bytes=1))])
    for end in range(CHUNK, FULL + 1, CHUNK):  # a write at a time: its queue is as short
        r.engine.store(PROMPT[:end], computed(PROMPT[:end]))
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert sorted(layer for layer, _ in store.log) == sorted(LAYERS * 10)
    assert settled(r)


def test_only_the_time_in_the_engine_counts_against_the_deadline(rig):
    r = rig([tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        for _ in layers:
            r.clock.advance(3_600)
        assert layers.result().hit_tokens == FULL
    device = Growing(PROMPT[::-1])
    with r.engine.store_layers(PROMPT[::-1], device) as layers:
        for layer in LAYERS:
            r.clock.advance(3_600)
            layers.layer_done(layer)
        assert layers.result().stored_tokens == FULL


def test_a_dead_tier_costs_its_deadline_once_over_all_layers(rig):
    store, gate = Ranged(), Event()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    clock, waits = r.clock, []

    def wait(condition, ready, deadline):
        """A lane that ends nothing before the deadline."""
        if ready():
            return True
        waits.append(deadline.remaining())
        clock.advance(deadline.remaining())
        return ready()

    store.answer = lambda key, start, into: gate.wait(30) and TimedOut()
    r.engine._chunks.stack.runtime.executor.wait = wait
    with r.engine.retrieve_layers(PROMPT, empty()) as layers:
        assert list(layers) == LAYERS
        got = layers.result()
    del r.engine._chunks.stack.runtime.executor.wait
    gate.set()
    assert sum(waits) == pytest.approx(r.engine._deadlines.retrieve)
    assert got.hit_tokens == 0
    assert settled(r)


def test_a_prompt_longer_than_the_pool_is_loaded_and_stored_from_its_beginning(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    r = rig([disk(tmp_path)], slots=6)
    target = empty()
    got = layerwise(r, target)
    assert 0 < got.hit_tokens < FULL
    assert target.agrees(computed(), got.hit_tokens)
    assert got.misses == {"refused": 1, "behind a miss": 9 - got.hit_tokens // CHUNK}
    assert settled(r)
    other = PROMPT[::-1]
    report = store_layerwise(r, other)
    assert 0 < report.stored_tokens < FULL
    assert report.stored_tokens + report.dropped_tokens == FULL
    target = empty(other)
    assert r.engine.retrieve(other, target).hit_tokens == report.stored_tokens
    assert target.agrees(computed(other), report.stored_tokens)


def test_a_pool_of_one_block_still_serves_one_chunk(rig):
    r = rig([tier("ranges", Ranged())], slots=1)
    assert store_layerwise(r).stored_tokens == CHUNK
    assert layerwise(r, empty()).hit_tokens == CHUNK


def test_a_call_waits_for_no_block_that_its_own_host_may_hold(rig):
    r = rig([tier("ranges", Ranged())], slots=1)
    r.engine.store(PROMPT[:CHUNK], computed(PROMPT[:CHUNK]))
    with r.engine.retrieve_layers(PROMPT, empty()) as loading:
        assert loading.hit_tokens == CHUNK
        report = store_layerwise(r)
        assert (report.present_tokens, report.stored_tokens) == (CHUNK, 0)
        assert report.dropped_tokens == FULL - CHUNK
        assert list(loading) == LAYERS


def test_room_for_one_chunk_never_pushes_out_another_of_the_same_prompt(rig):
    r = rig([memory(), tier("ranges", Ranged())], slots=12)
    r.engine.store(PROMPT, computed())
    target = empty()
    got = layerwise(r, target)
    assert got.hit_tokens >= got.tiers["memory"]
    assert target.agrees(computed(), got.hit_tokens)
    assert settled(r)
