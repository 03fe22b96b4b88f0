"""What scheduling promises to the callers of an engine, shown one by one in virtual time."""

import pytest

from hexkv.contracts.faults import Fault, RecordingStore, Scripted, Trouble
from hexkv.contracts.kit.cases import each
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.rules import TierRules, Writes
from hexkv.ports import CounterName, Reason
from rigging import chosen
from simulation.medium import Medium
from simulation.prompts import CHUNK, FRAME, Window, keys
from simulation.stage import DEADLINES, MEMORY, Place, Settings, Stage

PROMPT = tuple(range(500, 500 + 4 * CHUNK))
ALL = len(PROMPT)
KEPT = "memory store"


def place(
    name="disk", *, indexed=True, policy="lru", frames=30, writes=Writes.ALL, retries=1, **lane
):
    rules = TierRules(writes, retries=retries, lane=LaneRules(**lane))
    medium = Medium(None if indexed else frames * FRAME)
    return Place(name, medium, indexed, policy, frames * FRAME, rules, (0.0, 0.0))


class Sim:
    """An engine over simulated places, and callers whose durations are known."""

    def __init__(self, *places, slots=32, memory_frames=8):
        self.stage = Stage(1, Settings(slots, memory_frames, 4, True, list(places)))
        self.world = self.stage.world
        self.world.advance(0.0)  # what the places hold is indexed
        self.calls = []
        for place in places:
            place.store.inner = recording = RecordingStore(place.store.inner)
            self.calls.append(recording.calls)

    @property
    def engine(self):
        return self.stage.engine

    def store(self, tokens=PROMPT, **options):
        return self.engine.store(tokens, Window(tokens, 0, lambda: None), **options)

    def retrieve(self, tokens=PROMPT):
        window = Window(tokens, 0, lambda: None)
        got = self.engine.retrieve(tokens, window)
        assert window.wrong(0, got.hit_tokens) is None
        return got

    def do(self, work):
        return self.world.do(work)

    def timed(self, work):
        """What *work* gives, and the seconds that it took."""
        call = self.world.finish(self.world.begin(work))
        assert call.error is None
        return call.result, call.ended - call.began

    def only_on_disk(self, tokens=PROMPT):
        self.do(lambda: self.store(tokens))
        self.do(lambda: self.engine.clear(tiers=[MEMORY]))

    def asked(self, operation, ordinal=0):
        """Every key that a place's store was given, call by call."""
        return [k for call in self.calls[ordinal] if call.operation == operation for k in call.keys]

    def ledger(self):
        return {owner for owner in self.stage.pool.ledger() if owner != KEPT}


class Slow:
    """Takes its time for some operations."""

    def __init__(self, **seconds):
        self.seconds = seconds

    def trouble(self, operation, chunks):
        return Trouble(seconds=self.seconds.get(operation, 0.0))


def test_two_loads_of_one_prompt_read_it_once():
    disk = place()
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.plan = Slow(read=1.0)
    calls = [sim.world.begin(sim.retrieve) for _ in range(3)]
    for call in calls:
        sim.world.finish(call)
        assert call.result.hit_tokens == ALL
    assert sorted(sim.asked("read")) == sorted(keys(PROMPT, 0))


def test_two_stores_of_one_prompt_write_it_once():
    disk = place()
    sim = Sim(disk)
    disk.store.plan = Slow(write=1.0)
    for call in [sim.world.begin(sim.store) for _ in range(3)]:
        sim.world.finish(call)
        assert call.result.dropped_tokens == 0
    assert sorted(sim.asked("write")) == sorted(keys(PROMPT, 0))


def test_loads_are_never_behind_stores():
    disk = place(workers=1)
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.plan = Slow(write=8.0, read=0.01)
    other = tuple(range(900, 900 + ALL))
    sim.do(lambda: sim.store(other, wait=False))
    got, took = sim.timed(sim.retrieve)
    assert got.hit_tokens == ALL
    assert took < 0.1


def test_a_slow_tier_never_delays_a_fast_one():
    disk, remote = place(), place("remote")
    sim = Sim(disk, remote)
    remote.store.hang()
    report, took = sim.timed(lambda: sim.store(wait=False))
    assert took == 0.0
    assert report.tiers == {MEMORY: ALL}
    sim.world.advance(0.001)
    assert set(disk.medium.frames) == set(keys(PROMPT, 0))
    sim.do(lambda: sim.engine.clear(tiers=[MEMORY]))
    got, took = sim.timed(sim.retrieve)
    assert (got.tiers, took) == ({"disk": ALL}, 0.0)


def test_a_queue_is_bounded_and_what_it_refuses_is_counted():
    disk = place(queue_bytes=6 * FRAME, workers=1)
    sim = Sim(disk)
    disk.store.hang()
    for start in range(0, 400, 40):
        tokens = tuple(range(start, start + ALL))
        _, took = sim.timed(lambda t=tokens: sim.store(t, wait=False))
        assert took == 0.0
        assert sim.engine.health().tiers[1].queued_bytes <= 6 * FRAME
    assert sim.stage.telemetry.counts[CounterName.DROPPED] >= 30
    disk.store.release()
    sim.world.release_held()
    assert sim.do(sim.engine.flush)
    assert sim.engine.health().tiers[1].queued_bytes == 0
    assert not sim.ledger()


def test_a_call_answers_at_its_deadline_while_the_lease_lives_until_the_read_ends():
    disk = place()
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.hang()
    got, took = sim.timed(sim.retrieve)
    assert got.hit_tokens == 0
    assert got.misses["timed out"] == 1
    assert took == pytest.approx(DEADLINES.retrieve)
    assert sim.ledger()
    disk.store.release()
    sim.world.release_held()
    sim.world.settle()
    assert not sim.ledger()


@each("retries", [0, 1, 3])
def test_a_failed_call_is_made_again_so_many_times_and_no_more(retries):
    disk = place(retries=retries)
    sim = Sim(disk)
    sim.only_on_disk()
    met = []

    class Failing:
        def trouble(self, operation, chunks):
            met.append(operation)
            return Trouble(Fault.ERROR)

    disk.store.plan = Failing()
    assert sim.do(sim.retrieve).hit_tokens == 0
    assert 1 + retries <= met.count("read") <= 2 * (1 + retries)  # in at most two pieces


def test_an_error_that_passes_is_never_seen():
    disk = place(retries=1)
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.plan = Scripted(read=[Fault.ERROR])
    assert sim.do(sim.retrieve).hit_tokens == ALL
    disk.store.plan = Scripted(write=[Fault.ERROR])
    other = tuple(range(900, 900 + ALL))
    assert sim.do(lambda: sim.store(other)).tiers["disk"] == ALL


def test_a_hanging_tier_costs_its_deadline_once():
    disk = place(workers=1)
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.hang()
    assert sim.timed(sim.retrieve)[1] == pytest.approx(DEADLINES.retrieve)
    for _ in range(5):
        assert sim.timed(sim.retrieve)[1] == 0.0
    assert sim.engine.health().tiers[1].reading == "open"


def test_a_wait_for_room_ends_when_computing_is_sooner():
    disk = place(workers=1, queue_bytes=4 * FRAME)
    other = tuple(range(900, 900 + ALL))
    sim = Sim(disk)
    for tokens in (PROMPT, other):
        sim.only_on_disk(tokens)
    sim.engine.computes(ALL / 2.0)
    disk.store.plan = Slow(read=0.5)
    assert sim.timed(sim.retrieve)[0].tiers == {"disk": ALL}
    sim.do(lambda: sim.engine.clear(tiers=[MEMORY]))
    disk.store.plan = Slow(read=9.0)
    sim.world.begin(sim.retrieve)
    sim.world.advance(0.0)
    got, took = sim.timed(lambda: sim.retrieve(other))
    assert took == pytest.approx(2.0 - 0.5)
    assert got.misses == {Reason.SLOWER: 1, Reason.BEHIND_A_MISS: 3}
    assert sim.engine.health().tiers[1].reading == "closed"


def test_later_too_only_a_probe_costs_a_deadline_though_all_want_what_hangs():
    disk = place(workers=1)
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.hang()
    sim.timed(sim.retrieve)
    for _ in range(3):
        sim.world.advance(10.0)
        assert sim.timed(sim.retrieve)[1] == pytest.approx(DEADLINES.retrieve)
        assert sim.timed(sim.retrieve)[1] == 0.0


def test_a_copy_between_tiers_that_comes_too_late_leaves_no_lease():
    disk = place()
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.hang()
    moved, took = sim.timed(
        lambda: sim.engine.admin.copy(chosen(sim.engine, PROMPT), "disk", MEMORY)
    )
    assert (moved.done, took) == (0, pytest.approx(DEADLINES.store))
    disk.store.release()
    sim.world.release_held()
    sim.world.settle()
    assert not sim.ledger()


@pytest.mark.parametrize("how", ["hang", "crash"])
def test_a_tier_is_back_within_30_seconds_after_an_outage_of_60(how):
    disk = place()
    sim = Sim(disk)
    sim.only_on_disk()
    getattr(disk.store, how)()
    until = sim.world.now() + 60.0
    while sim.world.now() < until:
        sim.timed(sim.retrieve)
        sim.world.advance(0.5)
    disk.store.restart()
    disk.store.release()
    sim.world.release_held()
    ended = sim.world.now()
    while sim.do(sim.retrieve).tiers.get("disk") != ALL:
        sim.do(lambda: sim.engine.clear(tiers=[MEMORY]))
        sim.world.advance(0.5)
        assert sim.world.now() < ended + 30.0


@pytest.mark.parametrize("busy", ["read", "write", "scan"])
def test_closing_returns_though_a_store_hangs(busy):
    disk = place()
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.hang()
    if busy == "read":
        sim.timed(sim.retrieve)
    elif busy == "write":
        sim.do(lambda: sim.store(tuple(range(900, 900 + ALL)), wait=False))
    else:
        sim.stage.start()
    _, took = sim.timed(sim.engine.close)
    assert took <= DEADLINES.close
    disk.store.release()
    sim.world.release_held()
    sim.world.settle()
    assert sim.stage.pool.ledger() == {}


def test_a_caller_never_waits_for_the_tier_that_takes_what_memory_evicts():
    remote = place("remote", indexed=False, writes=Writes.EVICTED)
    sim = Sim(remote, memory_frames=4)
    sim.do(sim.store)
    sim.do(lambda: sim.store(tuple(range(700, 700 + ALL))))
    remote.store.hang()
    sim.timed(lambda: sim.engine.lookup(tuple(range(300, 300 + ALL))))  # opens the breaker
    _, took = sim.timed(lambda: sim.store(tuple(range(900, 900 + ALL)), wait=False))
    assert took == 0.0


def test_a_full_tier_that_could_not_delete_takes_new_chunks_once_it_can():
    disk = place(frames=4)
    sim = Sim(disk)
    sim.only_on_disk()
    disk.store.plan = Scripted(delete=[Fault.ERROR] * 9)
    sim.do(lambda: sim.engine.clear(tiers=["disk"]))
    disk.store.plan = Scripted()
    assert sim.do(sim.store).tiers["disk"] == ALL
    assert disk.medium.most <= 4 * FRAME


def test_a_budget_holds_though_the_first_scan_fails():
    disk = place(frames=4)
    sim = Sim(disk)
    sim.only_on_disk()
    sim.do(lambda: sim.engine.admin.detach("disk"))
    plan = sim.stage.plan(disk)
    disk.store.plan = Scripted(scan=[Fault.ERROR, Fault.ERROR])
    sim.do(lambda: sim.stage.attach(plan))
    for start in range(0, 400, 40):
        sim.do(lambda s=start: sim.store(tuple(range(s, s + ALL))))
    assert disk.medium.most <= 4 * FRAME
    assert sim.do(lambda: sim.store(tuple(range(900, 900 + ALL)))).tiers["disk"] == ALL


@each("policy", ["lru", "lfu", "fifo", "mru"])
def test_the_end_of_a_prompt_never_pushes_out_its_beginning(policy):
    disk = place(frames=5, policy=policy)
    sim = Sim(disk, slots=8)  # so it goes through in pieces
    long = tuple(range(12 * CHUNK))
    assert sim.do(lambda: sim.store(long)).tiers["disk"] == 5 * CHUNK
    assert set(disk.medium.frames) == set(keys(long, 0)[:5])
