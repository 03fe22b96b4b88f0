"""Chunks that a serde encoded, retrieved and stored layer by layer."""

from dict_store import ScanningStore
from hexkv.contracts.kit.cases import each
from hexkv.ports import CounterName, Namespace, frame_bytes
from layered import DEEP, FULL, PROMPT, Ranged, empty, memory, settled
from media.eight_serde import Eight, repeating
from rigging import CHUNK, chosen, tier


def deep(rig, *tiers, **options):
    frame = frame_bytes(DEEP.chunk_bytes(CHUNK))
    namespace = Namespace("deep", DEEP)
    return rig(tiers, frame=frame, namespace=namespace, serdes={"eight/1": Eight()}, **options)


def test_a_chunk_that_is_encoded_meanwhile_is_still_given_and_nothing_is_called_damaged(rig):
    store = Ranged()
    r = deep(rig, tier("ranges", store))
    r.engine.store(PROMPT, repeating())
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert next(layers) == 0
        assert r.engine.admin.compress(chosen(r.engine, PROMPT), "ranges", "eight/1").done == 10
        assert list(layers) == list(range(1, 9))
        assert layers.result().hit_tokens == FULL
    assert target.agrees(repeating(), FULL)
    assert [asked for asked, _ in store.log].count("whole") >= 10, "they were read again, whole"
    assert r.telemetry.total(CounterName.CORRUPT) == 0
    assert settled(r)


@each("kind", [Ranged, ScanningStore])
def test_chunks_that_a_serde_encoded_are_read_once_and_given_layer_by_layer(rig, kind):
    store = kind({})
    r = deep(rig, tier("encoded", store, serdes=("eight/1",)))
    with r.engine.store_layers(PROMPT, repeating()) as layers:
        for layer in range(9):
            layers.layer_done(layer)
        assert layers.result().stored_tokens == FULL
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert list(layers) == list(range(9))
        assert layers.hit_tokens == FULL
    assert target.agrees(repeating(), FULL)
    if kind is Ranged:
        assert [asked for asked, _ in store.log] == ["whole"] * 10
    assert settled(r)


def test_a_chunk_that_memory_keeps_encoded_is_given_layer_by_layer(rig):
    r = deep(rig, memory())
    r.engine.store(PROMPT, repeating())
    assert r.engine.admin.compress(chosen(r.engine, PROMPT), "memory", "eight/1").done == 10
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert list(layers) == list(range(9))
        assert layers.hit_tokens == FULL
    assert target.agrees(repeating(), FULL)
