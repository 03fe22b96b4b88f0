"""Left early, by an error or by a device that fails: retrieving layer by layer frees everything."""

from itertools import product
from threading import Event

import pytest

from dict_store import ScanningStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.ports import CounterName, InvalidRequest
from layered import FULL, PROMPT, Ranged, computed, disk, empty, memory, settled
from rigging import LAYOUT, tier

pytestmark = pytest.mark.usefixtures("one_by_one")


@each("kind", [Ranged, ScanningStore])
def test_leaving_early_frees_everything_and_counts_nothing(rig, kind):
    r = rig([memory(), tier("slow", kind({}))])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["memory"])
    for given, background in product([0, 1, 2], [False, True]):
        device = empty()
        device.background = background
        with r.engine.retrieve_layers(PROMPT, device) as layers:
            for _ in range(given):
                next(layers)
            with pytest.raises(InvalidRequest, match="still to come"):
                layers.result()
        assert settled(r)
        assert r.pool.held_bytes == 0
    assert r.telemetry.total(CounterName.LOOKUPS) == 0


def test_a_read_that_hangs_when_the_context_is_left_keeps_its_blocks_until_it_ends(rig):
    store, gate, inside = Ranged(), Event(), Event()

    def answer(key, start, into):
        inside.set()
        assert gate.wait(30)
        return Ranged.answer(store, key, start, into)

    store.answer = answer
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, empty()):
        assert inside.wait(30)
    assert r.pool.ledger() == {"layer read": 10}
    gate.set()
    assert settled(r)
    assert r.pool.held_bytes == 0
    assert len(store.log) == 1, "what nobody waits for is not read"


def test_nothing_goes_on_after_the_context_was_left(rig):
    r = rig([memory()])
    with r.engine.store_layers(PROMPT, computed()) as storing:
        storing.layer_done(0)
    for call in (storing.result, lambda: storing.layer_done(1)):
        with pytest.raises(InvalidRequest, match="was left"):
            call()
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, empty()) as loading:
        next(loading)
    with pytest.raises(InvalidRequest, match="was left"):
        next(loading)
    with r.engine.retrieve_layers(PROMPT, empty()) as loading:
        list(loading)
    assert loading.result().hit_tokens == FULL, "the answer stays"
    assert list(loading) == []


def test_an_error_of_the_host_frees_everything(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["memory"])

    def fails(step):
        step()
        raise KeyError("the host's own")

    with pytest.raises(KeyError), r.engine.retrieve_layers(PROMPT, empty()) as layers:
        fails(lambda: next(layers))
    with pytest.raises(KeyError), r.engine.store_layers(PROMPT[::-1], empty()) as layers:
        fails(lambda: layers.layer_done(0))
    assert settled(r)
    assert r.engine.lookup(PROMPT[::-1]).hit_tokens == 0


def test_a_device_that_fails_loads_nothing_more(rig):
    class Failing(HeapKV):
        def scatter(self, spans, layers=None):
            if layers == range(1, 2):
                raise OSError("no such device any more")
            return super().scatter(spans, layers)

    r = rig([tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, Failing(LAYOUT, len(PROMPT))) as layers:
        assert next(layers) == 0
        assert list(layers) == [1, 2]
        got = layers.result()
    assert (got.hit_tokens, got.misses) == (0, {"device": 1, "behind a miss": 9})
    assert settled(r)


def test_a_device_whose_copy_is_late_keeps_the_blocks_until_it_ends(rig):
    class Late:
        done = False

        def wait(self, deadline):
            return self.done

    class Slow(HeapKV):
        def scatter(self, spans, layers=None):
            super().scatter(spans, layers)
            return late

        gather = HeapKV.gather

    late = Late()
    r = rig([tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, Slow(LAYOUT, len(PROMPT))) as layers:
        assert next(layers) == 0
        assert layers.hit_tokens == 0
    assert r.pool.ledger().get("late copy") == 10
    late.done = True
    r.engine.lookup(PROMPT)
    assert settled(r)
