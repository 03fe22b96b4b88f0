"""What a tier could not take when it was new is offered to it again, while memory has it."""

import random

import pytest

from dict_store import ScanningStore
from hexkv.contracts.faults import FaultyStore
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.rules import Writes
from hexkv.ports import CounterName
from layered import FULL, PROMPT, computed, empty, memory, settled
from rigging import CHUNK, FRAME, tier


@pytest.fixture
def beside(rig):
    """Memory, and a tier beside it that can be switched off."""

    def make(store, **rules):
        return rig([memory(), tier("slow", store, **rules)])

    return make


def switch_off(r):
    assert r.engine.flush()  # what it holds is known, so nothing closes the breaker again
    r.tiers["slow"].writing.breaker.failed(at_once=True)


def switch_on(r):
    """The next write is the breaker's try; until it is made, the others are refused once more."""
    r.clock.advance(60.0)
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()


def test_chunks_that_were_dropped_are_written_when_their_prompt_comes_again(beside):
    store = ScanningStore({})
    r = beside(store)
    switch_off(r)
    assert r.engine.store(PROMPT, computed()).tiers == {"memory": FULL}
    assert r.engine.store(PROMPT, computed()).present_tokens == FULL
    assert not store.medium, "it is off"
    switch_on(r)
    longer = PROMPT[:FULL] + list(range(CHUNK))
    report = r.engine.store(longer, computed(longer))
    assert (report.present_tokens, report.stored_tokens) == (FULL, CHUNK)
    assert r.engine.flush()
    assert set(r.engine.chunk_keys(longer)) == set(store.medium)
    r.engine.clear(tiers=["memory"])
    target = empty()
    assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert settled(r)


def test_chunks_that_found_the_queue_full_are_written_by_and_by(beside):
    store = FaultyStore(ScanningStore({}))
    r = beside(store, lane=LaneRules(workers=1, queue_bytes=FRAME))
    assert r.engine.flush()  # what it holds is known, so nobody has to ask it while it hangs
    store.hang()
    r.engine.store(PROMPT[: 8 * CHUNK], computed(PROMPT[: 8 * CHUNK]), wait=False)
    other = PROMPT[::-1]
    r.engine.store(other, computed(other), wait=False)
    assert r.telemetry.total(CounterName.DROPPED) > 0
    store.release()
    for _ in range(20):
        assert r.engine.flush()
        r.engine.store(other, computed(other))
        r.engine.store(PROMPT[: 8 * CHUNK], computed(PROMPT[: 8 * CHUNK]))
    assert r.engine.flush()
    wanted = {*r.engine.chunk_keys(other), *r.engine.chunk_keys(PROMPT[: 8 * CHUNK])}
    assert wanted == set(store.inner.medium)
    assert settled(r)


def test_what_memory_no_longer_holds_is_forgotten(beside):
    store = ScanningStore({})
    r = beside(store)
    switch_off(r)
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT[: 5 * CHUNK], tiers=["memory"])
    switch_on(r)
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()
    assert set(r.engine.chunk_keys(PROMPT)) == set(store.medium), "the others were new again"
    assert r.tiers["slow"].backlog.take(r.engine.chunk_keys(PROMPT)) == []


def test_a_tier_for_what_memory_evicts_is_offered_nothing(beside):
    store = ScanningStore({})
    r = beside(store, writes=Writes.EVICTED)
    switch_off(r)
    r.engine.store(PROMPT, computed())
    switch_on(r)
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()
    assert not store.medium


def test_what_a_tier_is_owed_is_bounded_and_the_oldest_is_forgotten_first(beside):
    r = beside(ScanningStore({}))
    place = r.tiers["slow"]
    keys = [random.Random(i).randbytes(48) for i in range(5000)]
    for key in keys:
        place.backlog.add([key])
    assert place.backlog.take(keys) == keys[-4096:]
    assert place.backlog.take(keys) == [], "told once"
