"""What storing layer by layer promises: each layer once, and nothing visible before it is whole."""

from itertools import product
from threading import Event

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.ports import InvalidRequest
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
    settled,
    store_layerwise,
)
from rigging import CHUNK, LAYOUT, tier

pytestmark = pytest.mark.usefixtures("one_by_one")


def test_storing_copies_each_layer_when_it_is_done_and_waits_for_the_copies_at_the_end(rig):
    log = []

    class Copy:
        def __init__(self, layers):
            self.layers = layers

        def wait(self, deadline):
            log.append(("waited", self.layers))
            return True

    class Noting(Growing):
        def gather(self, spans, layers=None):
            log.append(("copied", layers))
            super().gather(spans, layers)
            return Copy(layers)

    device = Noting()
    r = rig([memory(), tier("ranges", Ranged())])
    one = [range(i, i + 1) for i in LAYERS]
    with r.engine.store_layers(PROMPT, device) as layers:
        for layer in LAYERS:
            device.compute_layer(layer)
            layers.layer_done(layer)
            assert log == [("copied", which) for which in one[: layer + 1]]
        assert r.engine.lookup(PROMPT).hit_tokens == 0, "nothing is visible before it is whole"
        assert layers.result().stored_tokens == FULL
        assert layers.result().stored_tokens == FULL, "asking again changes nothing"
    assert log[3:] == [("waited", which) for which in one]
    target = empty()
    r.engine.retrieve(PROMPT, target)
    assert target.agrees(computed(), FULL)


def test_a_store_that_is_left_early_stores_nothing(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    for done, background in product([0, 1, 3], [False, True]):
        device = computed()
        device.background = background
        with r.engine.store_layers(PROMPT, device) as layers:
            for layer in range(done):
                layers.layer_done(layer)
            if done < 3:
                with pytest.raises(InvalidRequest, match=f"layer {done} is not done"):
                    layers.result()
        assert settled(r)
        assert r.pool.held_bytes == 0
        assert r.engine.lookup(PROMPT).hit_tokens == 0


def test_layers_may_be_done_in_any_order_but_each_once(rig):
    r = rig([memory()])
    with r.engine.store_layers(PROMPT, computed()) as layers:
        for layer in (2, 0):
            layers.layer_done(layer)
        for wrong in (0, 2, -1, 3):
            with pytest.raises(InvalidRequest, match="was done, or is none"):
                layers.layer_done(wrong)
        layers.layer_done(1)
        assert layers.result().stored_tokens == FULL
    target = empty()
    r.engine.retrieve(PROMPT, target)
    assert target.agrees(computed(), FULL)


@each("how", ["raises", "late", "breaks"])
def test_a_copy_that_fails_stores_nothing_of_the_prompt(rig, how):
    class Copy:
        done = False

        def wait(self, deadline):
            if how == "breaks":
                raise OSError("lost")
            return self.done

    class Failing(HeapKV):
        def gather(self, spans, layers=None):
            if layers != range(1, 2):
                return super().gather(spans, layers)
            if how == "raises":
                raise OSError("no device")
            return copy

    copy = Copy()
    r = rig([memory(), tier("ranges", Ranged())])
    with r.engine.store_layers(PROMPT, Failing(LAYOUT, len(PROMPT)).compute(PROMPT)) as layers:
        for layer in LAYERS:
            layers.layer_done(layer)
        report = layers.result()
    assert (report.stored_tokens, report.dropped_tokens) == (0, FULL)
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    copy.done = True
    r.engine.lookup(PROMPT)
    assert settled(r)


def test_what_is_there_is_not_copied_again(rig):
    r = rig([memory(), tier("ranges", Ranged())])
    r.engine.store(PROMPT[: 4 * CHUNK], computed(PROMPT[: 4 * CHUNK]))

    class Counting(Growing):
        def gather(self, spans, layers=None):
            assert len(spans) == 6
            return super().gather(spans, layers)

    device = Counting()
    with r.engine.store_layers(PROMPT, device) as layers:
        for layer in LAYERS:
            device.compute_layer(layer)
            layers.layer_done(layer)
        report = layers.result()
    assert (report.present_tokens, report.stored_tokens) == (4 * CHUNK, 6 * CHUNK)
    assert report.tiers == {"memory": 6 * CHUNK, "ranges": 6 * CHUNK}
    again = store_layerwise(r)
    assert (again.present_tokens, again.stored_tokens) == (FULL, 0)


def test_without_waiting_slower_tiers_are_written_after_the_call(rig):
    store, gate = Ranged(), Event()

    def publish(name, frame):
        assert gate.wait(30)
        store.medium[name] = frame

    store.publish = publish
    r = rig([tier("ranges", store)])
    report = store_layerwise(r, wait=False)
    assert (report.stored_tokens, report.queued_tokens) == (0, FULL)
    gate.set()
    assert r.engine.flush()
    assert layerwise(r, empty()).hit_tokens == FULL


def test_a_frozen_engine_stores_nothing(rig):
    r = rig([memory()])
    r.engine.freeze()
    report = store_layerwise(r)
    assert (report.frozen, report.tokens, report.stored_tokens) == (True, len(PROMPT), 0)
    assert r.engine.lookup(PROMPT).hit_tokens == 0
