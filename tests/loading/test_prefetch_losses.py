"""What a prefetch lost, or was interrupted in, a retrieve gets all the same."""

import random
from contextlib import suppress

from prefetching import FULL, PROMPT, Gated, computed, empty, filled, loaded
from stepping import TAILS

from dict_store import ScanningStore
from hexkv.contracts.kit.cases import each
from hexkv.core.requests.prefetch import Prefetches, PrefetchRules
from hexkv.ports import Miss, Reason, Selection
from rigging import CHUNK, LAYOUT, tier


def test_a_lost_chunk_leaves_layers_the_prefetched_ones_before_it(rig):
    store = Gated()
    rules = PrefetchRules(share=1.0)
    r = filled(rig, store, slots=32, memory=True, prefetch=rules)
    keys = r.engine.chunk_keys(PROMPT)
    r.engine.admin.copy(Selection(keys=(keys[1],)), "slow", "memory")
    store.gate.clear()
    assert r.engine.prefetch("a", PROMPT) == FULL  # one hold, of the chunks around keys[1]
    del store.medium[keys[2]]
    store.gate.set()
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target, lookup_id="a") as layers:
        assert list(layers) == list(range(LAYOUT.layers))
        got = layers.result()
    assert got.hit_tokens == 2 * CHUNK
    assert target.agrees(computed(), got.hit_tokens)
    assert r.at_rest()


def test_a_store_that_refuses_a_chunk_is_read_once(rig):
    class Refusing(Gated):
        def read(self, keys, sink, deadline):
            self.reads.extend(keys)
            return [Miss(Reason.REFUSED) for _ in keys]

    store = Refusing()
    r = filled(rig, store)
    got = r.engine.retrieve(PROMPT, empty())
    assert (got.hit_tokens, got.misses[Reason.REFUSED]) == (0, 1)
    assert store.reads.count(r.engine.chunk_keys(PROMPT)[0]) == 1


def test_a_prefetch_that_was_interrupted_holds_what_it_is_taken_for(rig, monkeypatch):
    """Its blocks were given to others, and the retrieve read theirs."""
    r = filled(rig, Gated(), slots=16, prefetch=PrefetchRules(share=1.0))
    other = random.Random(5).choices(range(50_000), k=6 * CHUNK)
    begun = Prefetches._hit

    def interrupted(*prefetch):
        begun(*prefetch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(Prefetches, "_hit", interrupted)
        r.engine.prefetch("a", PROMPT)
    assert r.tiers["slow"].reading.drain(r.engine.admin._until(30))
    r.engine.store(other, computed(other))
    target = empty()
    got = r.engine.retrieve(PROMPT, target, lookup_id="a")
    assert got.hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert r.at_rest()


def test_a_tail_found_for_a_prefetch_that_was_cancelled_is_given_back(rig, monkeypatch):
    r = rig([tier("slow", Gated())], chunker=TAILS)
    r.engine.store(PROMPT, computed())
    hold = Prefetches._hold

    def late(prefetches, part, owner, read):
        found = hold(prefetches, part, owner, read)
        if len(part) == 1:  # the tail
            monkeypatch.undo()
            assert r.engine._requests.prefetches.cancel("a")
            r.engine._requests.prefetches.begin("a", lambda: part, read)
        return found

    monkeypatch.setattr(Prefetches, "_hold", late)
    r.engine.prefetch("a", PROMPT)
    assert r.engine.cancel("a")
    assert r.at_rest()
    assert r.pool.swept == 0


@each("by_layers", [False, True])
def test_a_retrieve_behind_a_chunk_that_its_prefetch_lost_misses_nothing(rig, by_layers):
    store = Gated()
    r = filled(rig, store)
    del store.medium[r.engine.chunk_keys(PROMPT)[0]]
    r.engine.prefetch("a", PROMPT)
    assert r.tiers["slow"].reading.drain(r.engine.admin._until(30))
    target = empty()
    got = loaded(r, target, by_layers, skip=CHUNK)
    assert (got.hit_tokens, got.misses) == (FULL, {})
    assert target.agrees(computed(), FULL, CHUNK)
    assert r.at_rest()


@each("by_layers", [False, True])
def test_a_chunk_lost_by_a_prefetch_past_its_time_comes_from_the_next_tier(rig, by_layers):
    first, second = Gated(), ScanningStore({})
    r = rig([tier("first", first), tier("second", second)])
    r.engine.store(PROMPT, computed())
    del first.medium[r.engine.chunk_keys(PROMPT)[1]]
    r.engine.prefetch("a", PROMPT)
    assert r.tiers["first"].reading.drain(r.engine.admin._until(30))
    r.clock.advance(11)  # past the deadline of a retrieve that had begun then
    target = empty()
    got = loaded(r, target, by_layers)
    assert (got.hit_tokens, got.misses) == (FULL, {})
    assert target.agrees(computed(), FULL)
    assert r.at_rest()


def test_layers_look_again_for_chunks_that_a_prefetch_lost_after_they_began(rig):
    first, second = Gated(), ScanningStore({})
    r = rig([tier("first", first), tier("second", second)])
    r.engine.store(PROMPT, computed())
    first.gate.clear()
    r.engine.prefetch("a", PROMPT)
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target, lookup_id="a") as layers:
        del first.medium[r.engine.chunk_keys(PROMPT)[1]]
        r.clock.advance(11)  # past the deadline of the prefetched reads
        first.gate.set()
        assert r.tiers["first"].reading.drain(r.engine.admin._until(30))
        assert len(list(layers)) == LAYOUT.layers
        got = layers.result()
    assert (got.hit_tokens, got.misses) == (FULL, {})
    assert target.agrees(computed(), FULL)
    assert r.at_rest()
