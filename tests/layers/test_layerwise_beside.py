"""Copies beside the host: a worker moves the next layers while the model computes this one."""

from contextlib import suppress
from itertools import pairwise
from threading import Event, Lock, get_ident

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.frames.codec import layer_parts, part_span
from hexkv.core.memory.background import LANE, BackgroundCopy
from hexkv.core.requests.layers import groups
from hexkv.ports import DType, InvalidRequest, KVLayout, Namespace, frame_bytes
from layered import (
    DEEP,
    FULL,
    LAYERS,
    PROMPT,
    SPANS,
    Ranged,
    computed,
    empty,
    keys_of,
    memory,
    same_layer,
    settled,
)
from rigging import CHUNK, LAYOUT, PATIENCE, rigging, tier


class Beside(HeapKV):
    """A window that any thread may use; says which layers its workers move, and can stop them."""

    background = True

    def __init__(self, layout=LAYOUT, tokens=PROMPT):
        super().__init__(layout, len(tokens))
        self.host, self.lock = get_ident(), Lock()
        self.mine, self.workers = [], []
        """Layers that were moved by the host's thread, and by workers."""

        self.begun, self.go, self.inside = Event(), Event(), 0
        self.go.set()
        self.failure = None

    def scatter(self, spans, layers=None):
        return self.moved(super().scatter, spans, layers)

    def gather(self, spans, layers=None):
        return self.moved(super().gather, spans, layers)

    def moved(self, move, spans, layers):
        if get_ident() == self.host:
            self.mine.extend(layers)
            return move(spans, layers)
        with self.lock:
            self.workers.extend(layers)
            self.inside += 1
        self.begun.set()
        try:
            assert self.go.wait(PATIENCE)
            if self.failure is not None:
                raise self.failure
            return move(spans, layers)
        finally:
            with self.lock:
                self.inside -= 1


def idle(r):
    """Wait until the worker that copies has nothing left to do."""
    done = Event()
    r.engine._chunks.stack.runtime.executor.run(LANE, done.set)
    assert done.wait(PATIENCE)


@pytest.fixture
def busy(rig, one_by_one):
    """An engine that holds the prompt, whose one worker is in the middle of a copy until `go`."""
    r, device = rig([memory()]), Beside()
    r.engine.store(PROMPT, computed())
    device.go.clear()
    with r.engine.retrieve_layers(PROMPT, device) as layers:
        next(layers)
        assert device.begun.wait(PATIENCE)
        yield r, device, layers
        device.go.set()
    assert settled(r)


@pytest.mark.usefixtures("one_by_one")
def test_a_worker_moves_one_group_beside_the_host_and_the_host_what_no_worker_came_to(rig):
    r, device = rig([memory()]), Beside()
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, device) as layers:
        for layer in layers:
            assert same_layer(device, computed(), layer, FULL)
            if layer < LAYERS[-1]:
                assert device.begun.wait(PATIENCE)
                device.begun.clear()
                assert device.workers == LAYERS[1 : layer + 2], "the next one, and none after it"
    assert device.mine == [0]
    tokens = PROMPT[::-1]
    storing = Beside(tokens=tokens)
    storing.memory = computed(tokens).memory
    with r.engine.store_layers(tokens, storing) as layers:
        for layer in (2, 0, 1):
            layers.layer_done(layer)
            assert storing.begun.wait(PATIENCE)
            storing.begun.clear()
        assert layers.result().stored_tokens == FULL
    assert sorted(storing.workers) == LAYERS
    target = empty(tokens)
    assert r.engine.retrieve(tokens, target).hit_tokens == FULL
    assert target.agrees(computed(tokens), FULL)
    assert settled(r)


def test_a_group_that_arrives_late_is_moved_once_it_is_there_without_a_call_of_the_host(
    rig, monkeypatch
):
    class Late(Ranged):
        """Reads the last layer once the host computes the first."""

        def read_range(self, key, start, into, deadline):
            if start == SPANS[-1][0]:
                assert computing.wait(PATIENCE)
            return super().read_range(key, start, into, deadline)

    computing = Event()
    two = 2 * LAYOUT.chunk_bytes(FULL) // LAYOUT.layers
    monkeypatch.setattr(groups, "_LEAST_BYTES", two)
    r, device = rig([tier("ranges", Late())]), Beside()
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, device) as layers:
        assert next(layers) == 0
        assert not device.begun.is_set()
        computing.set()
        assert device.begun.wait(PATIENCE)
        assert next(layers) == 1, "of the same group as the first"
        assert next(layers) == 2
        assert (device.mine, device.workers) == ([0, 1], [2])
        assert same_layer(device, computed(), 2, FULL)
    assert settled(r)


def test_who_finds_the_worker_busy_copies_alone_and_leaves_nothing_to_it(busy):
    r, first, _ = busy
    others = []
    for count in (len(LAYERS), 1):
        others.append(Beside())
        with r.engine.retrieve_layers(PROMPT, others[-1]) as layers:
            for _ in range(count):
                assert same_layer(others[-1], computed(), next(layers), FULL)
        assert others[-1].mine == LAYERS[:count]
    for count in (len(LAYERS), 1):
        others.append(Beside(tokens=PROMPT[::-1]))
        with r.engine.store_layers(PROMPT[::-1], others[-1]) as layers:
            for layer in LAYERS[:count]:
                layers.layer_done(layer)
            if count == len(LAYERS):
                assert layers.result().stored_tokens == FULL
        assert others[-1].mine == (LAYERS if count == len(LAYERS) else [])
        r.engine.clear(PROMPT[::-1])
    first.go.set()
    idle(r)
    assert [other.workers for other in others] == [[]] * 4, "nothing is moved once it was left"


@pytest.mark.usefixtures("one_by_one")
def test_a_host_that_leaves_waits_for_the_copy_that_has_begun(rig, monkeypatch):
    def wait(copy, deadline):
        device.go.set()
        return waits(copy, deadline)

    waits = BackgroundCopy.wait
    r = rig([tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    monkeypatch.setattr(BackgroundCopy, "wait", wait)
    calls = [
        lambda: r.engine.retrieve_layers(PROMPT, device),
        lambda: r.engine.retrieve_layers(PROMPT, device, lookup_id="prefetched"),
        lambda: r.engine.store_layers(PROMPT[::-1], device),
    ]
    for call in calls:
        device = Beside()
        device.go.clear()
        r.engine.prefetch("prefetched", PROMPT)
        with suppress(KeyboardInterrupt), call() as layers:
            layers.layer_done(0) if call is calls[-1] else next(layers)
            assert device.begun.wait(PATIENCE)
            assert device.inside == 1
            raise KeyboardInterrupt
        assert device.inside == 0
        r.engine.cancel("prefetched")
        assert settled(r)


@pytest.mark.usefixtures("one_by_one")
def test_a_copy_that_fails_beside_the_host_means_what_it_means_in_its_thread(rig):
    for failure in (OSError("gone"), InvalidRequest("not like this")):
        r, device = rig([memory()]), Beside()
        device.failure = failure
        r.engine.store(PROMPT, computed())
        with r.engine.retrieve_layers(PROMPT, device) as layers:
            assert next(layers) == 0
            assert device.begun.wait(PATIENCE)
            if isinstance(failure, InvalidRequest):
                with pytest.raises(InvalidRequest, match="not like this"):
                    next(layers)
                with pytest.raises(InvalidRequest, match="was left"):
                    next(layers)
            else:
                assert list(layers) == LAYERS[1:]
                assert device.mine == [0], "nothing more is loaded"
                assert layers.result().misses == {"device": 1, "behind a miss": 9}
        device.begun.clear()
        with r.engine.store_layers(PROMPT[::-1], device) as storing:
            for layer in LAYERS:
                storing.layer_done(layer)
                assert device.begun.wait(PATIENCE)
            if isinstance(failure, InvalidRequest):
                with pytest.raises(InvalidRequest, match="not like this"):
                    storing.result()
            else:
                assert storing.result().dropped_tokens == FULL
        assert r.engine.lookup(PROMPT[::-1]).hit_tokens == 0
        assert settled(r)


@pytest.mark.usefixtures("one_by_one")
def test_a_copy_that_hangs_beside_the_host_costs_its_deadline_and_keeps_its_blocks(rig):
    r, device = rig([memory()]), Beside()
    r.engine.store(PROMPT, computed())
    executor, clock = r.engine._chunks.stack.runtime.executor, r.clock

    def wait(condition, ready, deadline):
        clock.advance(deadline.remaining())
        return ready()

    device.go.clear()
    with r.engine.retrieve_layers(PROMPT, device) as layers:
        assert next(layers) == 0
        assert device.begun.wait(PATIENCE)
        executor.wait = wait
        assert list(layers) == LAYERS[1:]
        assert layers.result().hit_tokens == 0
    del executor.wait
    assert r.pool.ledger().get("late copy") == 10
    device.go.set()
    idle(r)
    r.engine.lookup(PROMPT)
    assert settled(r)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_goes_together_layers_come_whole_and_damage_ends_the_hit(data):
    draw = data.draw
    layout = draw(st.sampled_from([LAYOUT, DEEP]))
    least = draw(st.integers(1, 12)) * layout.chunk_bytes(FULL) // layout.layers
    background, lends = draw(st.booleans()), draw(st.booleans())
    damaged = draw(st.dictionaries(st.integers(0, 9), st.integers(0, layout.layers - 1)))
    with rigging() as rig, pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_LEAST_BYTES", least)
        patch.setattr(groups, "_SHARE", draw(st.integers(1, 9)))
        store = Ranged()
        frame, namespace = frame_bytes(layout.chunk_bytes(CHUNK)), Namespace("any", layout)
        tiers = [memory()] if lends else [tier("ranges", store)]
        r = rig(tiers, frame=frame, namespace=namespace)
        truth = computed(PROMPT, layout)
        r.engine.store(PROMPT, truth)
        for number, layer in () if lends else damaged.items():
            key = keys_of(r)[number]
            content = bytearray(store.medium[key])
            content[part_span(layer_parts(layout, CHUNK), layer)[0] + 1] ^= 1
            store.medium[key] = bytes(content)
        window = empty(PROMPT, layout)
        window.background = background
        together = groups.layer_groups(layout, FULL)
        damaged = {} if lends else damaged
        with r.engine.retrieve_layers(PROMPT, window) as layers:
            for layer in layers:
                (end,) = [group.stop for group in together if layer in group]
                known = [number for number, where in damaged.items() if where < end]
                assert layers.hit_tokens == min(known, default=10) * CHUNK
                assert same_layer(window, truth, layer, layers.hit_tokens)
            got = layers.result()
        assert window.agrees(truth, got.hit_tokens)
        again = HeapKV(layout, len(PROMPT)).compute(PROMPT, seed="other")
        again.background = background
        tokens = PROMPT[::-1]
        order = draw(st.permutations(range(layout.layers)))
        with r.engine.store_layers(tokens, again) as storing:
            for layer in order:
                storing.layer_done(layer)
            assert storing.result().stored_tokens == FULL
        window = empty(tokens, layout)
        assert r.engine.retrieve(tokens, window).hit_tokens == FULL
        assert window.agrees(again, FULL)
        assert settled(r)


@given(
    layers=st.integers(1, 300),
    tokens=st.integers(0, 1 << 20),
    width=st.integers(1, 4096),
)
def test_groups_make_up_all_layers_and_grow_from_small_to_large(layers, tokens, width):
    layout = KVLayout.attention(DType.BFLOAT16, layers=layers, heads=8, key_width=width)
    found = groups.layer_groups(layout, tokens)
    assert [layer for group in found for layer in group] == list(range(layers))
    sizes = [len(group) for group in groups.part_groups(layout, tokens)]
    assert all(after <= 2 * before for before, after in pairwise(sizes))
    one = max(1, layout.chunk_bytes(tokens) // sum(sizes))
    for size in sizes:
        assert size == 1 or size <= sum(sizes) // 6 or (size - 1) * one < groups._LEAST_BYTES
        assert size == 1 or size * one <= groups._MOST_BYTES
