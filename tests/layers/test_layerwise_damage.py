"""Layers that are absent, damaged or another's: what is given instead, and where the hit ends."""

from threading import Event

import pytest

from depth import covering
from dict_store import ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import PAGE, CounterName, Failed, Hit, Miss, StoreUnreachable, TimedOut
from layered import (
    FULL,
    LAYERS,
    PROMPT,
    SPANS,
    Ranged,
    computed,
    disk,
    empty,
    keys_of,
    layerwise,
    memory,
    same_layer,
    settled,
)
from rigging import CHUNK, PATIENCE, tier

pytestmark = pytest.mark.usefixtures("one_by_one")


class Breaking(Ranged):
    """Answers for one layer of one chunk of a prompt with *outcome* instead."""

    at = None
    outcome = None

    def answer(self, key, start, into):
        number, layer = self.at
        if self.layer(start, into) == layer and list(self.medium)[number] == key:
            into[:] = b"\xee" * len(into)
            return self.outcome
        return super().answer(key, start, into)


OUTCOMES = {
    "short": Hit(1),
    "absent": Miss(),
    "failed": Failed(StoreUnreachable("gone")),
    "timed out": TimedOut(),
    "nonsense": None,
}


@pytest.mark.parametrize(("outcome", "number", "layer"), covering(OUTCOMES, [0, 4, 9], LAYERS))
def test_a_layer_that_is_not_given_is_looked_for_in_the_whole_chunk(rig, number, layer, outcome):
    store = Breaking()
    store.at, store.outcome = (number, layer), OUTCOMES[outcome]
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert ("whole", keys_of(r)[number]) in store.log
    assert r.telemetry.total(CounterName.CORRUPT) == 0
    assert settled(r)


def damage(store, key, layer):
    frame = bytearray(store.medium[key])
    frame[SPANS[layer][0] + 1] ^= 0x10
    store.medium[key] = bytes(frame)


@pytest.mark.parametrize(("number", "layer"), covering([0, 4, 9], LAYERS))
def test_a_damaged_layer_ends_the_hit_before_its_chunk_and_is_never_used(rig, number, layer):
    store = Ranged()
    r = rig([memory(), tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["memory"])
    damage(store, keys_of(r)[number], layer)
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert layers.hit_tokens == FULL, "nobody can know yet"
        for given in layers:
            if given >= layer:
                assert layers.hit_tokens == number * CHUNK
            assert same_layer(target, computed(), given, layers.hit_tokens)
        got = layers.result()
    assert got.hit_tokens == got.loaded_tokens == number * CHUNK
    assert got.misses == {"corrupt": 1} | ({"behind a miss": 9 - number} if number < 9 else {})
    assert target.agrees(computed(), number * CHUNK)
    for given in LAYERS[layer:]:
        row = target._row(given, 0)
        assert not any(target.memory[given][0][number * CHUNK * row :]), "only the prefix is loaded"
    assert r.telemetry.total(CounterName.CORRUPT) == 1
    assert keys_of(r)[number] not in store.medium
    assert r.engine.lookup(PROMPT).hit_tokens == number * CHUNK
    assert settled(r)


@each("layer", LAYERS)
def test_a_slower_tier_stands_in_for_a_damaged_layer(rig, layer):
    store = Ranged()
    r = rig([tier("ranges", store), tier("whole", ScanningStore({}))])
    r.engine.store(PROMPT, computed())
    damage(store, keys_of(r)[5], layer)
    target = empty()
    got = layerwise(r, target)
    assert got.tiers == {"ranges": 9 * CHUNK, "whole": CHUNK}
    assert target.agrees(computed(), FULL)
    assert r.telemetry.total(CounterName.CORRUPT) == 1
    assert settled(r)


def test_a_damaged_layer_on_disk_is_refused(rig, tmp_path):
    r = rig([disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    name = keys_of(r)[3].hex()
    (path,) = [f for f in tmp_path.rglob("*") if name[-32:] in f.name or name in f.name]
    frame = bytearray(path.read_bytes())
    frame[SPANS[2][0]] ^= 1
    path.write_bytes(frame)
    target = empty()
    assert layerwise(r, target).hit_tokens == 3 * CHUNK
    assert target.agrees(computed(), 3 * CHUNK)


@each("shared", [False, True], ids=["disk", "fs"])
def test_bytes_behind_a_frame_are_refused_as_by_a_whole_read(rig, tmp_path_factory, shared):
    tmp_path = tmp_path_factory.mktemp("case")
    store = SharedFileStore(tmp_path, SystemClock(), ttl=None) if shared else DiskStore(tmp_path)
    r = rig([tier("files", store)])
    r.engine.store(PROMPT, computed())
    name = keys_of(r)[3].hex()
    (path,) = [f for f in tmp_path.rglob("*") if name[-32:] in f.name or name in f.name]
    with path.open("ab") as file:
        file.write(bytes(PAGE))
    target = empty()
    assert layerwise(r, target).hit_tokens == 3 * CHUNK
    assert r.telemetry.total(CounterName.CORRUPT) == 1
    assert settled(r)


def test_a_frame_of_another_chunk_is_refused_at_the_first_layer(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    keys = keys_of(r)
    store.medium[keys[4]] = store.medium[keys[5]]
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert next(layers) == 0
        assert layers.hit_tokens == 4 * CHUNK


def test_a_frame_whose_parts_are_no_layers_is_read_whole(rig):
    """The header says where parts end: a writer may have had other ones in mind."""
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    codec = r.engine._chunks.stack.runtime.codec
    for number in (2, 7):
        key = keys_of(r)[number]
        frame = bytearray(store.medium[key])
        codec.seal(memoryview(frame), codec.open(memoryview(frame))._replace(parts=()))
        store.medium[key] = bytes(frame)
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert [asked for asked, _ in store.log].count("whole") == 2


def test_a_store_that_lacks_layers_it_seemed_to_hold_is_a_miss(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    for key in keys_of(r)[2:]:
        del store.medium[key]
    target = empty()
    got = layerwise(r, target)
    assert (got.hit_tokens, got.misses) == (2 * CHUNK, {"lost": 8})
    assert r.engine.lookup(PROMPT).hit_tokens <= 3 * CHUNK, "the index has learnt of it"
    assert target.agrees(computed(), 2 * CHUNK)
    assert settled(r)


def test_a_tier_that_is_switched_off_is_not_asked(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    r.tiers["ranges"].reading.breaker.failed(at_once=True)
    with r.engine.retrieve_layers(PROMPT, empty()) as layers:
        assert list(layers) == LAYERS
        assert layers.result().hit_tokens == 0
    assert store.log == []
    assert settled(r)


class Tiring(Ranged):
    """Brings whole frames once; who asks again waits until the test is over."""

    def __init__(self):
        super().__init__()
        self.asked, self.over = 0, Event()

    def read(self, keys, sink, deadline):
        self.asked += 1
        assert self.asked == 1 or self.over.wait(PATIENCE)
        return super().read(keys, sink, deadline)


def test_all_that_was_found_damaged_can_be_stored_again_at_once(rig):
    store = Tiring()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    for key in keys_of(r):
        damage(store, key, 0)
    try:
        assert layerwise(r, empty()).hit_tokens == 0
        assert r.engine.store(PROMPT, computed()).stored_tokens == FULL
    finally:
        store.over.set()


def test_a_frame_with_bytes_behind_it_is_as_damaged_by_layers_as_in_bulk(rig):
    store, again = Ranged(), Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    for number, key in enumerate(keys_of(r)):
        again.medium[key] = store.medium[key] + bytes(PAGE if number > 2 else 0)
    s = rig([tier("ranges", again)])
    assert s.engine.flush()
    got = layerwise(s, empty())
    assert (got.hit_tokens, got.misses) == (3 * CHUNK, {"corrupt": 1, "behind a miss": 6})
