"""What prefetches promise: never a wait, never a leak, and nothing that a retrieve would miss."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from prefetching import FULL, PROMPT, Gated, computed, empty, filled

from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.kit.cases import each
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.core.tiers.holds.hold import LocalHold
from hexkv.peers.lending.lending import Lending, LendingRules
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import CounterName, Deadline, Offer, release_all
from processes import until
from rigging import CHUNK, FRAME, LAYOUT, tier


def test_a_prefetch_answers_at_once_and_a_retrieve_picks_up_what_it_read(rig):
    store = Gated()
    r = filled(rig, store)
    store.gate.clear()
    assert r.engine.prefetch("a", PROMPT) == FULL
    assert r.engine.prefetch("a", PROMPT) == FULL
    store.gate.set()
    target = empty()
    got = r.engine.retrieve(PROMPT, target, lookup_id="a")
    assert (got.hit_tokens, got.tiers) == (FULL, {"slow": FULL})
    assert target.agrees(computed(), FULL)
    assert len(store.reads) == len(set(store.reads)) == 10
    assert r.at_rest()
    assert r.engine.health().prefetches == 0


def test_a_store_that_must_be_asked_is_asked_in_the_background(rig):
    store = Gated()
    r = filled(rig, store, index=False)
    store.gate.clear()
    assert r.engine.prefetch("a", PROMPT) is None
    store.gate.set()
    # The lane's worker asks, then starts the reads: both are done when the lane is empty.
    (slow,) = r.tiers.values()
    assert slow.reading.drain(r.engine.admin._until(30))
    assert r.engine.prefetch("a", PROMPT) == FULL
    target = empty()
    assert r.engine.retrieve(PROMPT, target, lookup_id="a").hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert r.at_rest()


def test_a_store_that_nobody_waits_for_waits_for_no_tiers_word_either(rig):
    """It hung: each step of an engine that stores in it stood still until its deadline."""
    store = Gated()
    r = filled(rig, store, index=False)
    before = store.questions
    store.gate.clear()
    assert r.engine.store(PROMPT, computed(), wait=False).queued_tokens == FULL
    assert store.questions == before
    store.gate.set()
    assert r.engine.flush()
    assert r.at_rest()


def test_prefetches_take_no_more_than_their_share_and_the_retrieve_reads_the_rest(rig):
    store = Gated()
    r = filled(rig, store, slots=8, prefetch=PrefetchRules(share=0.25))
    assert r.engine.prefetch("a", PROMPT) == FULL
    assert r.engine.prefetch("b", PROMPT[: 4 * CHUNK]) == 4 * CHUNK
    assert r.engine.health().pool_held_bytes <= 2 * FRAME
    target = empty()
    assert r.engine.retrieve(PROMPT, target, lookup_id="a").hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert r.engine.cancel("b")
    assert r.at_rest()


def test_cancelling_gives_everything_back_even_while_it_is_read(rig):
    store = Gated()
    r = filled(rig, store)
    store.gate.clear()
    r.engine.prefetch("a", PROMPT)
    assert r.engine.cancel("a")
    assert not r.engine.cancel("a")
    store.gate.set()
    assert r.tiers["slow"].reading.drain(r.engine.admin._until(30))
    assert r.engine.health().leases == {}


def test_what_nobody_picks_up_is_given_back_after_its_time(rig):
    r = filled(rig, Gated(), prefetch=PrefetchRules(seconds=5))
    r.engine.prefetch("a", PROMPT)
    assert r.tiers["slow"].reading.drain(r.engine.admin._until(30))
    assert r.engine.health().leases
    r.clock.advance(6)
    health = r.engine.health()
    assert (health.prefetches, health.leases) == (0, {})
    target = empty()
    assert r.engine.retrieve(PROMPT, target, lookup_id="a").hit_tokens == FULL


def test_a_call_that_waits_for_memory_gets_what_a_prefetch_has_let_pass(rig):
    """Nobody releases it, and no call comes in: the one that waits takes it back itself."""
    r = filled(rig, Gated(), slots=10, prefetch=PrefetchRules(share=1.0, seconds=5))
    r.engine.prefetch("a", PROMPT)
    assert r.tiers["slow"].reading.drain(r.engine.admin._until(30))
    now = Deadline(r.clock, 0.0)
    others = r.pool.lease_run([LAYOUT.chunk_bytes(CHUNK)] * 10, "others", now)
    assert 0 < len(others) < 10
    other = list(range(CHUNK))
    with ThreadPoolExecutor(1) as pool:
        storing = pool.submit(r.engine.store, other, computed(other))
        until(lambda: r.pool._line.first is not None)
        r.clock.advance(6)
        assert storing.result(60).stored_tokens == CHUNK
    release_all(others)


def test_pins_past_their_time_keep_nothing_out_that_a_peer_gives(rig):
    """What peers give comes in by no call of the engine."""
    tiers = [tier("memory", MemoryStore(ManualClock()), budget=2 * FRAME)]
    giver, taker = rig([tier("memory", MemoryStore(ManualClock()))]), rig(tiers)
    mine, other = PROMPT[: 2 * CHUNK], list(range(2 * CHUNK))
    taker.engine.store(mine, computed(mine))
    assert taker.engine.pin(mine, "me", seconds=5) == 2 * CHUNK
    giver.engine.store(other, computed(other))
    keys = list(giver.engine.chunk_keys(other))
    until_then = Deadline.after(taker.clock, 30)
    ends = [
        Lending(one.engine._chunks.stack, ["memory"], LendingRules(1 << 20))
        for one in (giver, taker)
    ]
    frames = ends[0].lend(keys, "taker", until_then)

    def given():
        sizes = [(key, len(frame.frame)) for key, frame in zip(keys, frames, strict=True)]
        rooms = ends[1].room(sizes, until_then)
        for room, frame in zip(rooms, frames, strict=True):
            room.frame[:] = frame.frame
        offers = [Offer(key, room) for key, room in zip(keys, rooms, strict=True)]
        kept = ends[1].keep(offers, until_then)
        release_all(rooms)
        return kept

    assert given() == [False, False]
    taker.clock.advance(6)
    assert given() == [True, True]
    release_all(frames)


def test_chunks_behind_a_shorter_prompt_are_given_back_and_count_as_wasted(rig):
    r = filled(rig, Gated(), slots=32, prefetch=PrefetchRules(share=1.0))
    assert r.engine.prefetch("a", PROMPT) == FULL
    assert r.tiers["slow"].reading.drain(r.engine.admin._until(30))
    start = PROMPT[: 3 * CHUNK]
    held = r.engine.retrieve(start, empty(start), lookup_id="a")
    assert held.hit_tokens == 3 * CHUNK
    assert r.given_back()
    behind = r.telemetry.total(CounterName.READ_BYTES) - 3 * FRAME
    assert r.telemetry.total(CounterName.WASTED_BYTES) == behind > 0


def test_the_hold_of_a_tail_that_comes_while_a_retrieve_takes_the_others_is_released(
    rig, monkeypatch
):
    tokens = PROMPT[: 2 * CHUNK + 8]
    taking, added, target = Event(), Event(), empty(tokens)
    keep = LocalHold.keep

    def slowly(self, *args):
        taking.set()
        assert added.wait(30)
        return keep(self, *args)

    monkeypatch.setattr(LocalHold, "keep", slowly)
    r = rig([tier("slow", Gated())], chunker=PrefixChunker(CHUNK, 4))
    r.engine.store(tokens, computed(tokens))
    prefetches = r.engine._requests.prefetches
    hold, loads = prefetches._hold, []
    with ThreadPoolExecutor(1) as threads:

        def taken_at_once(part, owner, read):
            begun = hold(part, owner, read)
            if part.ends[-1] == len(tokens):
                loads.append(threads.submit(r.engine.retrieve, tokens, target, lookup_id="a"))
                assert taking.wait(30)
            return begun

        prefetches._hold = taken_at_once
        assert r.engine.prefetch("a", tokens) == len(tokens)
        added.set()
        assert loads[0].result().hit_tokens == len(tokens)
    assert target.agrees(computed(tokens), len(tokens))
    assert r.given_back()


def test_a_prefetch_of_another_prompt_is_not_mistaken_for_this_one(rig):
    r = filled(rig, Gated())
    r.engine.prefetch("a", PROMPT)
    other = [7, *PROMPT[1:]]
    target = empty(other)
    assert r.engine.retrieve(other, target, lookup_id="a").hit_tokens == 0
    assert target.agrees(empty(other), FULL)
    assert r.tiers["slow"].reading.drain(r.engine.admin._until(30))
    assert r.at_rest()


def test_damaged_chunks_shorten_what_a_prefetch_brings(rig):
    store = Gated()
    r = filled(rig, store)
    key = r.engine._naming.prompt(PROMPT, None).keys[3]
    store.medium[key] = bytes(len(store.medium[key]))
    r.engine.prefetch("a", PROMPT)
    target = empty()
    got = r.engine.retrieve(PROMPT, target, lookup_id="a")
    assert got.hit_tokens == 3 * CHUNK
    assert target.agrees(computed(), 3 * CHUNK)
    assert r.telemetry.total(CounterName.CORRUPT) == 1
    assert r.at_rest()


def test_prefetched_chunks_reach_the_memory_tier_when_they_are_used(rig):
    r = filled(rig, Gated(), memory=True)
    r.engine.prefetch("a", PROMPT)
    r.engine.retrieve(PROMPT, empty(), lookup_id="a")
    assert r.engine.retrieve(PROMPT, empty()).tiers == {"memory": FULL}


def test_closing_gives_prefetches_back(rig):
    r = filled(rig, Gated())
    r.engine.prefetch("a", PROMPT)
    r.engine.close()
    assert r.given_back()


@each("tokens", [[], [1], PROMPT[: CHUNK - 1]])
def test_short_prompts_have_nothing_to_prefetch(rig, tokens):
    r = filled(rig, Gated())
    assert r.engine.prefetch("a", tokens) == 0


def test_pins_of_vanished_owners_end_after_their_time(rig):
    r = filled(rig, Gated())
    assert r.engine.pin(PROMPT, "gone", seconds=30) == FULL
    assert r.engine.lookup(PROMPT, pin="here").hit_tokens == FULL
    health = r.engine.health()
    assert health.pins == {"gone": 10, "here": 10}
    assert health.pin_seconds["gone"] == pytest.approx(30)
    r.clock.advance(31)
    assert r.engine.unpin("gone") == 0
    assert r.engine.health().pins == {"here": 10}
    assert r.engine.unpin("here") == 10
    assert r.engine.unpin("never was") == 0


def test_what_the_index_knows_is_not_asked_of_a_store_whose_listing_is_being_taken_in(rig):
    """The caller must not wait for that store: it may be busy with what is over its budget."""
    store = Gated()
    r = filled(rig, store)
    r.tiers["slow"].indexing = True
    store.questions = 0
    r.engine.prefetch("a", PROMPT)
    assert store.questions == 0
    r.engine.cancel("a")
