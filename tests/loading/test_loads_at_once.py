"""No hit is lost because others load, too: a full queue and a full pool are waits, not misses."""

from threading import Barrier, Thread

import pytest

from depth import covering
from dict_store import ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.rules import Writes
from hexkv.ports import CounterName, Miss, Reason
from layered import Ranged, memory
from rigging import CHUNK, FRAME, LAYOUT, tier

CHUNKS = 4


def prompt(number):
    return [number] * (CHUNKS * CHUNK)


def kv(number):
    return HeapKV(LAYOUT, CHUNKS * CHUNK).compute(prompt(number))


def at_once(threads, work):
    """Have so many threads begin *work* at the same moment; what each of them found."""
    start, found = Barrier(threads), {}

    def run(number):
        start.wait(60)
        found[number] = work(number)

    running = [Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
    return [found[number] for number in range(threads)]


def whole(r):
    def load(number):
        target = HeapKV(LAYOUT, CHUNKS * CHUNK)
        got = r.engine.retrieve(prompt(number), target)
        assert target.agrees(kv(number), got.hit_tokens)
        return got.loaded_tokens, got.misses

    return load


ALL = (CHUNKS * CHUNK, {})


def stored(r, count, *, wait=True):
    for number in range(count):
        r.engine.store(prompt(number), kv(number), wait=wait)


@pytest.mark.parametrize(("slots", "threads"), covering([1, 3, 8, 31, 93], [16, 2]))
def test_all_loads_at_once_are_whole_however_small_the_pool(rig, tmp_path, slots, threads):
    r = rig([tier("disk", DiskStore(tmp_path))], slots=slots)
    stored(r, threads)
    for _ in range(3):
        assert at_once(threads, whole(r)) == [ALL] * threads
    assert r.at_rest()
    assert r.pool.swept == 0


def test_loads_with_a_queue_of_one_chunk_wait_for_each_other(rig):
    r = rig([tier("slow", ScanningStore({}), lane=LaneRules(workers=1, queue_bytes=1))])
    for number in range(8):
        for end in range(CHUNK, CHUNKS * CHUNK + 1, CHUNK):  # its queue for writes is as short
            r.engine.store(prompt(number)[:end], HeapKV(LAYOUT, end).compute(prompt(number)[:end]))
    assert at_once(8, whole(r)) == [ALL] * 8
    assert r.at_rest()


class Torn(ScanningStore):
    """Holds everything, and brings nothing whole."""

    def read(self, keys, sink, deadline):
        for key in keys:
            self.medium[key] = bytes(len(self.medium[key]))
        return super().read(keys, sink, deadline)


class Refusing(ScanningStore):
    """Holds everything, and still does after it has brought nothing."""

    def read(self, keys, sink, deadline):
        return [Miss(Reason.REFUSED) for _ in keys]


@pytest.mark.parametrize("other", [Torn, Refusing])
def test_a_chunk_that_another_tier_must_bring_waits_for_room_there(rig, other):
    lane = LaneRules(workers=1, queue_bytes=FRAME)
    r = rig(
        [tier("other", other({})), tier("sound", ScanningStore({}), lane=lane)],
        slots=8,
    )
    for number in range(8):
        for end in range(CHUNK, CHUNKS * CHUNK + 1, CHUNK):
            r.engine.store(prompt(number)[:end], HeapKV(LAYOUT, end).compute(prompt(number)[:end]))
    assert at_once(8, whole(r)) == [ALL] * 8
    assert r.at_rest()


@pytest.mark.parametrize("store", [ScanningStore, Ranged], ids=["whole", "by parts"])
def test_loads_layer_by_layer_at_once_are_whole(rig, store):
    r = rig([tier("slow", store({}) if store is ScanningStore else store())], slots=8)
    stored(r, 8)

    def load(number):
        target = HeapKV(LAYOUT, CHUNKS * CHUNK)
        with r.engine.retrieve_layers(prompt(number), target) as layers:
            for _ in layers:
                pass
            got = layers.result()
        assert target.agrees(kv(number), got.hit_tokens)
        return bool(got.loaded_tokens)

    # Each holds all of its blocks for as long as the model computes: a pool of eight blocks
    # is no place for eight prompts of four. But each gets as much as is free.
    assert at_once(8, load) == [True] * 8
    assert r.at_rest()


def test_a_host_never_waits_for_blocks_that_it_holds_itself(rig):
    r = rig([tier("slow", ScanningStore({}))], slots=4)
    stored(r, 2)
    with r.engine.retrieve_layers(prompt(0), HeapKV(LAYOUT, CHUNKS * CHUNK)) as first:
        held = r.pool.held_bytes
        assert held >= 2 * FRAME
        started = r.clock.now()
        with r.engine.retrieve_layers(prompt(1), HeapKV(LAYOUT, CHUNKS * CHUNK)) as second:
            for _ in second:
                pass
        assert r.clock.now() == started
        assert list(first) == list(range(LAYOUT.layers))
    assert r.at_rest()


@pytest.fixture
def spilling(rig):
    """Memory, and a tier for the chunks that it evicts, with a queue of one."""
    lane = LaneRules(workers=1, queue_bytes=FRAME)
    r = rig([memory(), tier("below", ScanningStore({}), writes=Writes.EVICTED, lane=lane)])
    assert r.engine.flush()
    return r


def test_stores_that_wait_lose_nothing_that_memory_evicts_to_a_full_queue(spilling):
    r = spilling
    r.tiers["memory"].index.budget = 4 * CHUNKS * FRAME  # no call fills it alone

    def store(thread):
        for number in range(thread, 20, 4):
            r.engine.store(prompt(number), kv(number))

    at_once(4, store)
    assert r.engine.flush()
    assert r.telemetry.total(CounterName.DROPPED) == 0
    keys = {key for number in range(20) for key in r.engine.chunk_keys(prompt(number))}
    assert keys == {*r.tiers["below"].store.medium, *r.tiers["memory"].index.keys()}
    assert r.at_rest()


def test_a_hit_neither_waits_for_a_full_queue_nor_evicts_to_it(spilling):
    r = spilling
    r.tiers["memory"].index.budget = CHUNKS * FRAME
    stored(r, 2)
    assert r.engine.flush()
    r.tiers["below"].writing.hold()
    r.engine.store([9] * CHUNK, HeapKV(LAYOUT, CHUNK).compute([9] * CHUNK))
    before = r.telemetry.total(CounterName.EVICTED), r.clock.now()
    assert whole(r)(0) == ALL
    assert (r.telemetry.total(CounterName.EVICTED), r.clock.now()) == before
    assert r.telemetry.total(CounterName.DROPPED) == 0
    r.tiers["below"].writing.unhold()
    assert r.at_rest()


def test_what_memory_evicts_while_the_queue_below_is_full_is_offered_again(spilling):
    r = spilling
    below = r.tiers["below"]
    below.writing.hold()
    stored(r, 1)
    r.tiers["memory"].index.budget = 2 * FRAME
    stored(r, 3, wait=False)
    assert r.telemetry.total(CounterName.DROPPED, tier="below") > 0
    below.writing.unhold()
    r.tiers["memory"].index.budget = 1 << 30
    for _ in range(2 * CHUNKS * 3):
        stored(r, 3)
        assert r.engine.flush()
    keys = {key for number in range(3) for key in r.engine.chunk_keys(prompt(number))}
    lost = keys - set(r.tiers["below"].store.medium) - set(r.tiers["memory"].index.keys())
    assert not lost
    assert below.backlog.take(list(keys)) == []
