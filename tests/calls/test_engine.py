"""What the engine promises over real stores: memory blocks and a disk directory."""

import random
from threading import Thread

import pytest

from depth import thorough
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.observing import ObservedCache
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import CounterName, EngineClosed, InvalidRequest, Namespace
from prompts import FULL, PROMPT, computed, disk, empty, files_in, memory
from rigging import CHUNK, FRAME, LAYOUT, tier


def test_gives_back_what_was_stored(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    report = r.engine.store(PROMPT, computed())
    assert (report.stored_tokens, report.dropped_tokens) == (FULL, 0)
    assert report.tiers == {"memory": FULL, "disk": FULL}
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert got.hit_tokens == FULL
    assert got.tiers == {"memory": FULL}
    assert target.agrees(computed(), FULL)
    assert r.at_rest()


def test_a_new_engine_finds_what_an_old_one_left_on_disk(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    second = rig([memory(), disk(tmp_path)])
    assert second.engine.lookup(PROMPT).tiers == {"disk": FULL}
    target = empty()
    assert second.engine.retrieve(PROMPT, target).tiers == {"disk": FULL}
    assert target.agrees(computed(), FULL)
    assert second.engine.retrieve(PROMPT, empty()).tiers == {"memory": FULL}


def test_storing_what_is_there_copies_nothing(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    before = [(f, f.stat().st_mtime_ns) for f in files_in(tmp_path)]

    class Untouchable(HeapKV):
        def gather(self, spans, layers=None):
            raise AssertionError("copied")

    report = r.engine.store(PROMPT, Untouchable(LAYOUT, len(PROMPT)))
    assert (report.stored_tokens, report.present_tokens) == (0, FULL)
    assert [(f, f.stat().st_mtime_ns) for f in files_in(tmp_path)] == before


def test_memory_moves_many_chunks_at_once_but_no_more_than_a_quarter_of_the_pool(rig):
    class Counting(HeapKV):
        moved = ()

        def gather(self, spans, layers=None):
            self.moved = (*self.moved, len(spans))
            return super().gather(spans, layers)

        def scatter(self, spans, layers=None):
            self.moved = (*self.moved, len(spans))
            return super().scatter(spans, layers)

    prompt = list(range(300 * CHUNK))
    for blocks, moves in ((1200, (256, 44)), (480, (120, 120, 60))):
        r = rig([memory()], slots=blocks)
        device = Counting(LAYOUT, len(prompt))
        assert r.engine.store(prompt, device).stored_tokens == len(prompt)
        assert r.engine.retrieve(prompt, device).loaded_tokens == len(prompt)
        assert device.moved == moves * 2


def test_only_the_missing_part_of_a_longer_prompt_is_stored(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[: 4 * CHUNK], computed(PROMPT[: 4 * CHUNK]))
    report = r.engine.store(PROMPT, computed())
    assert (report.present_tokens, report.stored_tokens) == (4 * CHUNK, 6 * CHUNK)


def test_a_shared_prefix_is_shared_and_no_more(rig):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    other = PROMPT[: 3 * CHUNK + 2] + [1] * 100
    target = empty(other)
    assert r.engine.retrieve(other, target).hit_tokens == 3 * CHUNK
    assert target.agrees(computed(other), 3 * CHUNK)


def test_a_chunk_on_disk_between_chunks_in_memory_is_a_hit(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    index = r.tiers["memory"].index
    keys = index.keys()
    gone = index.discard([keys[4]])
    r.tiers["memory"].store.delete(gone, None)
    index.deleted(gone)
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert got.tiers == {"memory": 9 * CHUNK, "disk": CHUNK}
    assert target.agrees(computed(), FULL)


def test_skipped_tokens_are_neither_loaded_nor_stored(rig):
    r = rig([memory()])
    skip = 3 * CHUNK
    assert r.engine.store(PROMPT, computed(), skip=skip).stored_tokens == 7 * CHUNK
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    r.engine.store(PROMPT, computed())
    target = empty()
    got = r.engine.retrieve(PROMPT, target, skip=skip)
    assert (got.hit_tokens, got.loaded_tokens) == (FULL, 7 * CHUNK)
    assert target.agrees(computed(), FULL, skip)
    assert target.agrees(empty(), skip)


def test_namespaces_do_not_mix(rig):
    r = rig([memory()])
    tenant = Namespace("toy", LAYOUT, revision="1", salt="tenant-a")
    r.engine.store(PROMPT, computed(), namespace=tenant)
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    assert r.engine.lookup(PROMPT, namespace=tenant).hit_tokens == FULL


def test_a_request_longer_than_the_pool_goes_through_in_pieces(rig, tmp_path):
    r = rig([disk(tmp_path)], slots=2)
    assert r.engine.store(PROMPT, computed()).stored_tokens == FULL
    target = empty()
    assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)


def test_a_memory_budget_keeps_the_beginning_of_a_long_prompt(rig, tmp_path):
    r = rig([tier("memory", MemoryStore(ManualClock()), 3 * FRAME), disk(tmp_path)], slots=8)
    report = r.engine.store(PROMPT, computed())
    assert report.tiers == {"memory": 3 * CHUNK, "disk": FULL}
    assert r.engine.lookup(PROMPT).tiers == {"memory": 3 * CHUNK, "disk": 7 * CHUNK}


def test_a_full_pool_makes_the_memory_tier_evict(rig):
    r = rig([memory()], slots=6)
    for start in range(5):
        prompt = PROMPT[start : start + 4 * CHUNK]
        r.engine.store(prompt, computed(prompt))
        target = empty(prompt)
        got = r.engine.retrieve(prompt, target)
        assert got.hit_tokens >= CHUNK
        assert target.agrees(computed(prompt), got.hit_tokens)
    assert r.telemetry.total(CounterName.EVICTED) > 0


def test_budgets_hold_and_survive_a_restart(rig, tmp_path):
    r = rig([disk(tmp_path, budget=4 * FRAME)])
    for start in range(6):
        prompt = PROMPT[start : start + 3 * CHUNK]
        r.engine.store(prompt, computed(prompt))
        assert sum(f.stat().st_size for f in files_in(tmp_path)) <= 4 * FRAME
    r.engine.close()
    again = rig([disk(tmp_path, budget=2 * FRAME)])
    assert again.engine.flush()
    assert sum(f.stat().st_size for f in files_in(tmp_path)) <= 2 * FRAME
    (health,) = again.engine.health().tiers
    assert health.used_bytes == sum(f.stat().st_size for f in files_in(tmp_path))


def test_pinned_chunks_outlive_pressure_until_unpinned(rig):
    r = rig([tier("memory", MemoryStore(ManualClock()), 4 * FRAME)])
    kept = PROMPT[: 3 * CHUNK]
    r.engine.store(kept, computed(kept))
    assert r.engine.pin(kept, "request-1") == 3 * CHUNK
    assert r.engine.health().pins == {"request-1": 3}
    other = PROMPT[50:]
    r.engine.store(other, computed(other))
    assert r.engine.lookup(kept).hit_tokens == 3 * CHUNK
    assert r.engine.unpin("request-1") == 3
    assert r.engine.unpin("request-1") == 0
    r.engine.store(other, computed(other))
    assert r.engine.lookup(kept).hit_tokens < 3 * CHUNK


def test_a_frozen_engine_serves_and_stores_nothing(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[:32], computed(PROMPT[:32]))
    r.engine.freeze()
    report = r.engine.store(PROMPT, computed())
    assert report.frozen
    assert report.stored_tokens == 0
    assert r.engine.retrieve(PROMPT, empty()).hit_tokens == 32
    r.engine.freeze(False)
    assert r.engine.store(PROMPT, computed()).stored_tokens == FULL - 32


def test_health_says_why_a_host_froze_the_engine(rig):
    r = rig([memory()])
    assert (r.engine.health().frozen, r.engine.health().why) == (False, "")
    r.engine.freeze(why="weights were replaced")
    assert (r.engine.health().frozen, r.engine.health().why) == (True, "weights were replaced")
    assert ObservedCache(r.engine).unready() == "it is off: weights were replaced"
    r.engine.freeze(False)
    assert (r.engine.health().frozen, r.engine.health().why) == (False, "")
    assert not ObservedCache(r.engine).unready()


def test_clearing_by_tokens_by_tier_and_whole(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    assert r.engine.clear(PROMPT[: 2 * CHUNK], tiers=["memory"]).chunks == 2
    assert r.engine.lookup(PROMPT).tiers == {"memory": 8 * CHUNK, "disk": 2 * CHUNK}
    assert r.engine.clear(PROMPT[: 2 * CHUNK]).chunks == 2
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    assert r.engine.clear().chunks == 8
    assert files_in(tmp_path) == []
    with pytest.raises(InvalidRequest, match="no tier 'tape'; there are memory, disk"):
        r.engine.clear(tiers=["tape"])


def test_hits_and_misses_add_up_to_lookups(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[: 4 * CHUNK], computed(PROMPT[: 4 * CHUNK]))
    for tokens in (PROMPT, PROMPT[: 2 * CHUNK], PROMPT[3:], []):
        r.engine.retrieve(tokens, empty(tokens))
    counted = r.telemetry.total
    assert (
        counted(CounterName.LOOKUPS)
        == counted(CounterName.HITS) + counted(CounterName.MISSES)
        == 22
    )
    assert counted(CounterName.HITS) == 6


def test_a_closed_engine_refuses_calls_and_closes_twice(rig):
    r = rig([memory()])
    with r.engine as engine:
        engine.store(PROMPT, computed())
    for call in (
        lambda: engine.lookup(PROMPT),
        lambda: engine.store(PROMPT, computed()),
        lambda: engine.retrieve(PROMPT, empty()),
        lambda: engine.clear(),
    ):
        with pytest.raises(EngineClosed):
            call()
    engine.close()
    assert engine.health().state == "closed"
    assert r.pool.ledger() == {}


def test_tiers_are_told_apart_in_events(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT[:32], computed(PROMPT[:32]))
    r.engine.clear(tiers=["memory"])
    told = [(event.change.value, event.tier, len(event.keys)) for event in r.events.events]
    assert told == [("stored", "memory", 2), ("stored", "disk", 2), ("removed", "memory", 2)]


@pytest.mark.parametrize("seed", [0, 1, 2, *thorough(*range(3, 10))])
def test_threads_never_see_wrong_kv(rig, seed):
    rng = random.Random(seed)
    r = rig([tier("memory", MemoryStore(ManualClock()), 6 * FRAME)], slots=16)
    prompts = [PROMPT[: rng.randrange(165)] + [i] * rng.randrange(80) for i in range(6)]
    wrong = []

    def work(order):
        for prompt in order:
            target = empty(prompt)
            got = r.engine.retrieve(prompt, target)
            if not target.agrees(computed(prompt), got.hit_tokens):
                wrong.append(prompt)
            r.engine.store(prompt, computed(prompt), skip=got.hit_tokens)

    threads = [Thread(target=work, args=(rng.sample(prompts, 6),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert r.at_rest()
