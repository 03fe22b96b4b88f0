"""Clearing: a namespace's chunks go from every tier, others' stay, and what is left is said."""

import random
from contextlib import ExitStack
from threading import Event

import pytest

from dict_store import DictStore, ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.engine.engine import Deadlines
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import InvalidRequest, Namespace, StoreUnreachable
from rigging import CHUNK, FRAME, LAYOUT, NAMESPACE, PATIENCE, tier

PROMPT = random.Random(8).choices(range(50_000), k=4 * CHUNK)
FULL = 4 * CHUNK
STRANGER = Namespace("another model", LAYOUT, revision="1")
LORA = Namespace("toy", LAYOUT, revision="1", lora="painter")


def kv():
    return HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)


def hit(r, namespace=None):
    return r.engine.lookup(PROMPT, namespace=namespace).hit_tokens


def memory():
    return tier("memory", MemoryStore(ManualClock()))


@pytest.mark.parametrize("restarted", [False, True])
def test_clearing_takes_what_is_ours_from_a_shared_directory_and_nothing_else(
    rig, tmp_path, restarted
):
    def start(namespace):
        return rig([memory(), tier("disk", DiskStore(tmp_path))], namespace=namespace)

    other = start(STRANGER)
    first = start(NAMESPACE)
    for r in (other, first):
        r.engine.store(PROMPT, kv())
    ours = first
    if restarted:
        other.engine.close()
        first.engine.close()
        ours = start(NAMESPACE)
        assert ours.engine.flush()
    cleared = ours.engine.clear()
    assert cleared.complete
    assert (cleared.chunks, cleared.tiers["disk"]) == (4, 4)
    assert hit(ours) == 0
    assert hit(start(STRANGER)) == FULL
    assert hit(start(NAMESPACE)) == 0


def test_what_others_stored_of_a_namespace_goes_too(rig, tmp_path):
    ours, theirs = (rig([tier("disk", DiskStore(tmp_path))]) for _ in range(2))
    assert ours.engine.flush()
    theirs.engine.store(PROMPT, kv())
    assert ours.engine.clear().tiers == {"disk": 0}
    assert hit(ours) == 0
    assert hit(rig([tier("disk", DiskStore(tmp_path))])) == 0


def test_every_namespace_that_was_met_goes_or_only_the_one_that_is_named(rig):
    r = rig([memory(), tier("disk", ScanningStore({}))])
    for namespace in (NAMESPACE, LORA, STRANGER):
        r.engine.store(PROMPT, kv(), namespace=namespace)
    assert r.engine.clear(namespace=LORA).chunks == 4
    assert [hit(r, n) for n in (NAMESPACE, LORA, STRANGER)] == [FULL, 0, FULL]
    assert r.engine.clear().chunks == 8
    assert [hit(r, n) for n in (NAMESPACE, LORA, STRANGER)] == [0, 0, 0]


def test_everything_is_a_word_of_its_own(rig):
    medium = {}
    first = rig([tier("disk", ScanningStore(medium))], namespace=STRANGER)
    first.engine.store(PROMPT, kv())
    first.engine.close()
    r = rig([tier("disk", ScanningStore(medium))])
    assert r.engine.flush()
    assert r.engine.clear().chunks == 0
    assert len(medium) == 4
    for more in ({"tokens": PROMPT}, {"namespace": NAMESPACE}):
        with pytest.raises(InvalidRequest, match="everything"):
            r.engine.clear(**more, everything=True)
    assert r.engine.clear(everything=True).chunks == 4
    assert medium == {}


def test_a_store_that_cannot_list_is_said_not_to_be_cleared_but_of_a_prompt(rig):
    r = rig([memory(), TierPlan("remote", DictStore({}))])
    r.engine.store(PROMPT, kv())
    cleared = r.engine.clear()
    assert not cleared.complete
    assert set(cleared.left) == {"remote"}
    assert "cannot list" in cleared.left["remote"]
    assert cleared.tiers["memory"] == 4
    assert hit(r) == FULL
    assert r.engine.clear(tiers=["memory"]).complete
    assert r.engine.clear(PROMPT).complete
    assert hit(r) == 0


class Clearing(DictStore):
    """Lists nothing, and clears what it is told to; later fails to."""

    works = True

    def clear_prefix(self, prefix, deadline):
        if not self.works:
            raise StoreUnreachable("not now")
        mine = [key for key in self.medium if key.startswith(prefix)]
        return sum(self.delete(mine, deadline))


def test_a_store_that_lists_nothing_clears_by_namespace(rig):
    medium = {}
    theirs = rig([TierPlan("remote", Clearing(medium))], namespace=STRANGER)
    theirs.engine.store(PROMPT, kv())
    r = rig([memory(), TierPlan("remote", Clearing(medium))])
    r.engine.store(PROMPT, kv())
    cleared = r.engine.clear()
    assert (cleared.complete, cleared.chunks) == (True, 4)
    assert cleared.tiers == {"memory": 4, "remote": 4}
    assert hit(r) == 0
    assert hit(theirs) == FULL
    assert r.engine.clear(everything=True).tiers == {"memory": 0, "remote": 4}
    assert medium == {}


def test_a_store_that_fails_to_clear_is_said_to(rig):
    store = Clearing({})
    r = rig([memory(), TierPlan("remote", store)])
    r.engine.store(PROMPT, kv())
    store.works = False
    assert set(r.engine.clear().left) == {"remote"}
    assert r.tiers["remote"].calls.failures == 1
    store.works = True
    assert r.engine.clear().complete


@each("count", [None, True, -1, 1.0, "4"])
def test_a_count_that_is_none_is_no_clear(rig, count):
    store = Clearing({})
    r = rig([TierPlan("remote", store)])
    r.engine.store(PROMPT, kv())
    store.clear_prefix = lambda prefix, deadline: count
    assert set(r.engine.clear().left) == {"remote"}
    del store.clear_prefix


class ClearingBeside(ScanningStore):
    """Lists and clears, and has others beside this engine."""

    shared = True

    def clear_prefix(self, prefix, deadline):
        mine = [key for key in self.medium if key.startswith(prefix)]
        return sum(self.delete(mine, deadline))

    def scan(self):
        assert not self.medium, "it was listed, which takes as long as all of it"
        return iter(())


def test_what_a_store_clears_itself_is_not_listed_and_leaves_the_index(rig):
    r = rig([tier("bucket", ClearingBeside({}), budget=4 * FRAME)])
    assert r.engine.flush()
    r.engine.store(PROMPT, kv())
    assert r.tiers["bucket"].index.used == 4 * FRAME
    assert r.engine.clear().tiers == {"bucket": 4}
    assert r.tiers["bucket"].index.used == 0
    assert hit(r) == 0


class Refusing(ScanningStore):
    """Deletes nothing."""

    def delete(self, keys, deadline):
        raise StoreUnreachable("not now")


def test_what_a_store_did_not_delete_is_said_and_not_found(rig):
    r = rig([memory(), tier("disk", Refusing({}))])
    r.engine.store(PROMPT, kv())
    assert set(r.engine.clear().left) == {"disk"}
    assert hit(r) == 0


@each("store", [ScanningStore, ClearingBeside])
def test_what_an_eviction_did_not_delete_goes_with_a_clear(rig, store):
    r = rig([tier("disk", store({}), budget=4 * FRAME)])
    assert r.engine.flush()
    r.engine.store(PROMPT, kv())
    disk = r.tiers["disk"]
    disk.put_off(disk.index.evict(4 * FRAME))
    assert len(disk.store.medium) == 4
    assert r.engine.clear(PROMPT[:CHUNK]).complete
    assert len(disk.store.medium) == 3
    assert r.engine.clear(everything=True).complete
    assert (disk.store.medium, disk.index.used) == ({}, 0)
    assert not disk.deleting.undeleted


@each("well", [True, False])
def test_a_clear_waits_for_what_another_worker_is_deleting_and_says_if_that_failed(rig, well):
    r = rig([tier("disk", ScanningStore({}), budget=4 * FRAME)])
    r.engine.store(PROMPT, kv())
    disk = r.tiers["disk"]
    disk.put_off(disk.index.evict(4 * FRAME))
    under_way = ExitStack()
    (mine,) = under_way.enter_context(disk.deleting.now(disk.index.leaving()[:1]))
    settled = disk.deleting.settled

    def ended_meanwhile(keys, deadline):
        if well:
            disk.deleting.done([mine])
        under_way.close()
        return settled(keys, deadline)

    disk.deleting.settled = ended_meanwhile
    assert r.engine.clear(everything=True).complete is well


class RefusingBeside(ClearingBeside):
    """Deletes nothing, whoever else may store there."""

    def delete(self, keys, deadline):
        raise StoreUnreachable("not now")


@each("store, tokens", [(Refusing, None), (Refusing, PROMPT), (RefusingBeside, None)])
def test_what_a_store_did_not_delete_goes_with_the_next_clear(rig, store, tokens, monkeypatch):
    r = rig([memory(), tier("disk", store({}))])
    assert r.engine.flush()
    r.engine.store(PROMPT, kv())
    for _ in range(2):  # the index has let go of it, and still it is there
        assert set(r.engine.clear(tokens).left) == {"disk"}
    with monkeypatch.context() as mended:
        mended.setattr(store, "delete", ScanningStore.delete)
        assert r.engine.clear(tokens).complete
        assert r.tiers["disk"].store.medium == {}
        assert r.tiers["disk"].index.used == 0


def test_a_tier_that_is_off_is_said_not_to_be_cleared_and_keeps_no_other_from_it(rig):
    r = rig([tier("off", ScanningStore({})), tier("disk", ScanningStore({}))])
    r.engine.store(PROMPT, kv())
    r.tiers["off"].writing.breaker.failed(at_once=True)
    cleared = r.engine.clear()
    assert cleared.left == {"off": "tier off"}
    assert cleared.tiers == {"off": 0, "disk": 4}


class Slow(ScanningStore):
    """Takes its time over a write."""

    def __init__(self, medium):
        super().__init__(medium)
        self.began, self.released = Event(), Event()

    def write(self, items, deadline):
        self.began.set()
        self.released.wait()
        return super().write(items, deadline)


def test_what_is_being_written_is_waited_for_and_goes(rig):
    store = Slow({})
    r = rig([tier("disk", store)])
    r.engine.store(PROMPT, kv(), wait=False)
    assert store.began.wait(PATIENCE)
    lane = r.tiers["disk"].writing
    drain = lane.drain
    lane.drain = lambda deadline: store.released.set() or drain(deadline)
    assert r.engine.clear().complete
    assert store.medium == {}
    assert hit(r) == 0


def test_a_write_that_hangs_is_said_and_costs_a_clear_its_deadline_at_most(rig):
    store = Slow({})
    deadlines = Deadlines(store=0.4, close=0.4)
    r = rig([memory(), tier("disk", store)], clock=SystemClock(), deadlines=deadlines)
    r.engine.store(PROMPT, kv(), wait=False)
    assert store.began.wait(PATIENCE)
    cleared = r.engine.clear()
    assert "disk" in cleared.left
    assert cleared.tiers["memory"] == 4
    store.released.set()


def test_clearing_under_a_bounded_budget_gives_the_bytes_back(rig):
    r = rig([tier("disk", ScanningStore({}), budget=4 * FRAME)])
    r.engine.store(PROMPT, kv())
    assert r.engine.clear().complete
    assert r.tiers["disk"].index.used == 0
