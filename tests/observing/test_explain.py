"""Why did it miss? Every cause is provoked for real, then asked for."""

import random
from dataclasses import replace
from threading import Event

import pytest

from dict_store import DictStore, ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.index.indexes import Unindexed
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.tier import TierPlan
from hexkv.core.tiers.write.clearing import forget
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import InvalidTokens, Miss, Reason, StoreUnreachable
from rigging import CHUNK, FRAME, LAYOUT, chosen, tier

PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK + 5)
OTHER = random.Random(4).choices(range(50_000), k=6 * CHUNK)
FULL = 6 * CHUNK


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def empty(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens))


def memory(**options):
    return tier("memory", MemoryStore(ManualClock()), **options)


def disk(path, **options):
    return tier("disk", DiskStore(path), **options)


def reasons(explanation, where):
    """Of each chunk that missed: why, on one tier."""
    return [chunk.tiers[where].reason for chunk in explanation.missed if chunk.tiers]


class Faulty(ScanningStore):
    """Fails while it is told to."""

    reads = writes = True
    answer = None

    def read(self, keys, sink, deadline):
        if not self.reads:
            raise StoreUnreachable("the cable is out")
        if self.answer is not None:
            return [Miss(self.answer)] * len(keys)
        return super().read(keys, sink, deadline)

    def write(self, items, deadline):
        if not self.writes:
            raise StoreUnreachable("the cable is out")
        return super().write(items, deadline)


def test_what_is_there_needs_no_explanation(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[:FULL], computed(PROMPT[:FULL]))
    told = r.engine.explain(PROMPT[:FULL])
    assert (told.chunks, told.hit_chunks, told.hit_tokens) == (6, 6, FULL)
    assert told.diverges is None
    assert told.missed == told.elsewhere == ()
    assert r.at_rest()


def test_a_tail_that_fills_no_chunk_is_too_short(rig):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    (tail,) = r.engine.explain(PROMPT).missed
    assert (tail.start, tail.end, tail.reason) == (FULL, FULL + 5, Reason.TOO_SHORT)


@each("tokens", [PROMPT[:1], PROMPT[: CHUNK - 1]])
def test_a_prompt_shorter_than_a_chunk_is_too_short(rig, tokens):
    told = rig([memory()]).engine.explain(tokens)
    assert told.chunks == told.hit_chunks == 0
    assert told.diverges.reason is Reason.TOO_SHORT
    assert (told.diverges.start, told.diverges.end) == (0, len(tokens))


def test_an_empty_prompt_misses_nothing(rig):
    assert rig([memory()]).engine.explain([]).missed == ()


def test_tokens_that_are_none_are_refused(rig):
    with pytest.raises(InvalidTokens):
        rig([memory()]).engine.explain([-1])


def test_the_first_chunk_that_diverges_is_named(rig):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    told = r.engine.explain(PROMPT[: 2 * CHUNK + 3] + OTHER)
    assert told.hit_chunks == 2
    assert (told.diverges.index, told.diverges.start, told.diverges.end) == (2, 32, 48)
    assert set(reasons(told, "memory")) == {Reason.NEVER_STORED}


def test_evicted_says_when_and_by_which_policy(rig):
    clock = ManualClock()
    r = rig([memory(budget=6 * FRAME, policy="fifo")], clock=clock)
    r.engine.store(PROMPT, computed())
    clock.advance(100)
    r.engine.store(OTHER, computed(OTHER))
    why = r.engine.explain(PROMPT).diverges.tiers["memory"]
    assert (why.reason, why.when, why.detail) == (Reason.EVICTED, clock.wall(), "by FIFO")


def test_a_retrieve_counts_as_evicted_what_explain_says_was_evicted(rig):
    """Until it is stored again and goes another way; also layer by layer, and in a hold."""
    r = rig([memory(budget=6 * FRAME, policy="fifo")])
    engine = r.engine
    engine.store(PROMPT, computed())
    engine.store(OTHER, computed(OTHER))
    misses = {Reason.EVICTED: 6}
    assert engine.retrieve(PROMPT, empty()).misses == misses
    with engine.retrieve_layers(PROMPT, empty()) as layers:
        for _ in layers:
            pass
        assert layers.result().misses == misses
    told = engine.explain(PROMPT).reasons["memory"]
    assert told == {"evicted": 6}
    engine.store(PROMPT, computed())
    engine.clear(PROMPT)
    assert engine.retrieve(PROMPT, empty()).misses == {Reason.ABSENT: 6}


def test_a_chunk_behind_a_missing_one_is_there_but_no_use(rig):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    index = r.tiers["memory"].index
    second = index.keys()[1]
    forget(r.tiers["memory"], [second], None)
    told = r.engine.explain(PROMPT)
    assert told.hit_chunks == 1
    behind = [Reason.BEHIND_A_MISS] * 4
    assert [chunk.reason for chunk in told.missed] == [None, *behind, Reason.TOO_SHORT]
    assert told.reasons == {"memory": {"never stored": 1, "present": 4}}


def test_what_a_store_lost_is_lost(rig, tmp_path):
    r = rig([disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    for file in tmp_path.rglob("*.hexkv"):
        file.unlink()
    r.engine.retrieve(PROMPT, empty())
    assert reasons(r.engine.explain(PROMPT), "disk")[0] is Reason.LOST


@each("looks", [False, True], ids=["asked for", "explained"])
def test_what_a_shared_store_without_an_index_lost_is_lost(rig, looks):
    """As Redis, where another one flushed it, or it evicted by itself."""
    medium = {}
    r = rig([TierPlan("remote", DictStore(medium), Unindexed())])
    r.engine.store(PROMPT, computed())
    medium.clear()
    if not looks:
        assert r.engine.retrieve(PROMPT, empty()).misses[Reason.LOST] == 6
    assert reasons(r.engine.explain(PROMPT), "remote")[0] is Reason.LOST
    assert reasons(r.engine.explain(OTHER), "remote")[0] is Reason.NEVER_STORED
    r.engine.store(PROMPT, computed())
    assert r.engine.retrieve(PROMPT, empty()).hit_tokens == FULL


def test_what_was_cleared_on_a_shared_store_is_not_lost(rig):
    medium = {}
    r = rig([TierPlan("remote", DictStore(medium), Unindexed())])
    r.engine.store(PROMPT, computed())
    assert not r.engine.clear(PROMPT).left
    assert r.engine.retrieve(PROMPT, empty()).misses == {Reason.ABSENT: 6}


def test_damage_is_remembered(rig, tmp_path):
    r = rig([disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    for file in tmp_path.rglob("*.hexkv"):
        data = bytearray(file.read_bytes())
        data[5000] ^= 1
        file.write_bytes(data)
    r.engine.retrieve(PROMPT, empty())
    assert reasons(r.engine.explain(PROMPT), "disk")[0] is Reason.CORRUPT


@each(
    ("answer", "cause"),
    [(Reason.EXPIRED, Reason.EXPIRED), (Reason.EVICTED, Reason.EVICTED)],
)
def test_what_a_store_says_of_its_own_deeds_is_believed(rig, answer, cause):
    store = Faulty({})
    r = rig([tier("remote", store)])
    r.engine.store(PROMPT, computed())
    store.answer = answer
    assert r.engine.retrieve(PROMPT, empty()).misses == {answer: 6}
    why = r.engine.explain(PROMPT).diverges.tiers["remote"]
    assert why.reason is cause
    assert r.engine.lookup(PROMPT).hit_tokens == 0


def test_a_failed_read_gives_the_stores_words_until_it_reads_well(rig):
    store = Faulty({})
    r = rig([tier("remote", store)])
    r.engine.store(PROMPT, computed())
    store.reads = False
    r.engine.retrieve(PROMPT, empty())
    told = r.engine.explain(PROMPT)
    why = told.diverges.tiers["remote"]
    assert (told.hit_chunks, why.reason) == (0, Reason.READ_FAILED)
    assert why.detail == "StoreUnreachable: the cable is out"
    store.reads = True
    assert r.engine.retrieve(PROMPT, empty()).hit_tokens == FULL
    assert r.engine.explain(PROMPT).hit_chunks == 6


def test_a_failed_write_gives_the_stores_words_until_it_writes_well(rig):
    store = Faulty({})
    r = rig([tier("remote", store)])
    store.writes = False
    r.engine.store(PROMPT, computed())
    why = r.engine.explain(PROMPT).diverges.tiers["remote"]
    assert why.reason is Reason.WRITE_FAILED
    assert why.detail == "StoreUnreachable: the cable is out"
    store.writes = True
    r.engine.store(PROMPT, computed())
    assert r.engine.explain(PROMPT).hit_chunks == 6


def test_what_found_no_room_was_dropped(rig):
    r = rig([memory(budget=6 * FRAME)])
    r.engine.store(PROMPT, computed())
    r.engine.pin(PROMPT, "operator")
    r.engine.store(OTHER, computed(OTHER))
    why = r.engine.explain(OTHER).diverges.tiers["memory"]
    assert (why.reason, why.detail) == (Reason.DROPPED, "no room")
    r.engine.unpin("operator")


def test_what_no_queue_took_was_dropped(rig):
    begun, go_on = Event(), Event()

    class Slow(ScanningStore):
        def write(self, items, deadline):
            begun.set()
            assert go_on.wait(60)
            return super().write(items, deadline)

    rules = LaneRules(workers=1, queue_bytes=1)
    r = rig([tier("remote", Slow({}), lane=rules)])
    assert r.engine.flush(60)  # the lane looks first for what the store holds
    r.engine.store(PROMPT[:CHUNK], computed(PROMPT[:CHUNK]), wait=False)
    assert begun.wait(60)
    r.engine.store(OTHER, computed(OTHER), wait=False)
    go_on.set()
    assert r.engine.flush(60)
    why = r.engine.explain(OTHER).diverges.tiers["remote"]
    assert (why.reason, why.detail) == (Reason.DROPPED, "queue full")


def test_what_the_device_did_not_give_was_dropped(rig):
    class Dead(HeapKV):
        def gather(self, spans, layers=None):
            raise RuntimeError("no device")

    r = rig([memory()])
    r.engine.store(PROMPT, Dead(LAYOUT, len(PROMPT)))
    why = r.engine.explain(PROMPT).diverges.tiers["memory"]
    assert (why.reason, why.detail) == (Reason.DROPPED, "not copied")


def test_what_was_cleared_or_moved_is_not_called_evicted(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["disk"])
    r.engine.admin.move(chosen(r.engine, PROMPT), "memory", "disk")
    r.engine.clear(PROMPT, tiers=["disk"])
    tiers = r.engine.explain(PROMPT).diverges.tiers
    assert (tiers["memory"].reason, tiers["memory"].detail) == (Reason.MOVED, "to disk")
    assert tiers["disk"].reason is Reason.CLEARED


@each("indexed", [True, False])
def test_a_tier_that_failed_is_off_and_its_chunks_are_not_called_gone(rig, indexed):
    store = Faulty({})
    rules = LaneRules(breaker=BreakerRules(failures=1))
    place = tier("remote", store, lane=rules, retries=0)
    place = place if indexed else replace(place, index=Unindexed())
    r = rig([place])
    r.engine.store(PROMPT, computed())
    store.reads = False
    r.engine.retrieve(PROMPT, empty())
    told = r.engine.explain(PROMPT)
    assert told.hit_chunks == 0
    assert set(reasons(told, "remote")) == {Reason.TIER_OFF}


def test_a_tier_that_is_never_read_is_off_by_its_rules(rig):
    r = rig([tier("archive", ScanningStore({}), reads=False)])
    r.engine.store(PROMPT, computed())
    why = r.engine.explain(PROMPT).diverges.tiers["archive"]
    assert why.reason is Reason.TIER_OFF
    assert why.detail == "its rules say that it is not read"


def test_a_tier_that_takes_nothing_new_says_so(rig):
    r = rig([tier("archive", ScanningStore({}), writes=Writes.NONE)])
    assert r.engine.flush(60)  # it is indexed
    r.engine.store(PROMPT, computed())
    why = r.engine.explain(PROMPT).diverges.tiers["archive"]
    assert (why.reason, why.detail) == (Reason.NEVER_STORED, "the tier takes none")


def test_while_a_tier_is_indexed_nothing_is_called_never_stored(rig):
    go_on = Event()

    class Slow(ScanningStore):
        def scan(self):
            assert go_on.wait(60)
            yield from super().scan()

    r = rig([tier("remote", Slow({}))])
    told = r.engine.explain(PROMPT)
    go_on.set()
    assert set(reasons(told, "remote")) == {Reason.INDEXING}
    assert r.engine.flush(60)
    assert set(reasons(r.engine.explain(PROMPT), "remote")) == {Reason.NEVER_STORED}


def test_a_store_that_does_not_answer_is_not_said_to_lack_anything(rig):
    class Mute(DictStore):
        def contains(self, keys, deadline):
            raise StoreUnreachable("gone")

    r = rig([TierPlan("remote", Mute({}))])
    assert set(reasons(r.engine.explain(PROMPT), "remote")) == {Reason.NO_ANSWER}


def test_every_tier_says_its_own(rig, tmp_path):
    r = rig([memory(budget=6 * FRAME), disk(tmp_path, writes=Writes.NONE)])
    assert r.engine.flush(60)  # it is indexed
    r.engine.store(PROMPT, computed())
    r.engine.store(OTHER, computed(OTHER))
    tiers = r.engine.explain(PROMPT).diverges.tiers
    assert {name: why.reason for name, why in tiers.items()} == {
        "memory": Reason.EVICTED,
        "disk": Reason.NEVER_STORED,
    }


def test_of_many_chunks_the_first_are_listed_and_all_are_counted(rig):
    told = rig([memory()]).engine.explain(list(range(100 * CHUNK)))
    assert len(told.missed) == 16
    assert told.reasons == {"memory": {"never stored": 100}}


def test_it_reads_as_a_sentence(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[: 2 * CHUNK], computed(PROMPT[: 2 * CHUNK]))
    assert str(r.engine.explain(PROMPT)) == (
        "32 of 101 tokens would be loaded; tokens 32 to 48: memory: never stored"
    )
