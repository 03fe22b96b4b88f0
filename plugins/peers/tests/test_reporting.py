"""What a cache holds reaches a directory, whatever becomes of either."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configured import CHUNK, LAYOUT, NAMESPACE, PROMPT
from hexkv.contracts.chunk_cache._base import put, soon, specs
from hexkv.contracts.directory.double import DictDirectory
from hexkv.contracts.doubles import ManualClock, chunk_key, deadline
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.telemetry import EventSinkContract
from hexkv.peers.lives import Life
from hexkv.peers.reporting import Reporter, Reporting
from hexkv.peers.serving.served import ServedChunks
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.composition.observing import ObservedCache
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Origin
from hexkv.plugins.observing.held import HeldChunks
from hexkv.plugins.spec import AdapterSpec
from hexkv.ports import (
    REPORT_KEYS,
    CacheEvent,
    Change,
    ConfigError,
    Member,
    StoreBusy,
    StoreUnreachable,
)
from processes import until

KEYS = [chunk_key(f"chunk{n}") for n in range(40)]
ADA = Member("ada", 1)


class Told(DictDirectory):
    """Notes what it is told; one that does not answer has noted it all the same, or not."""

    def __init__(self, clock):
        super().__init__(clock)
        self.reports, self.snapshots = [], []
        self.notes_unanswered = False

    def join(self, member, snapshot, until):
        batches = [list(batch) for batch in snapshot]
        self.snapshots.append(batches)
        return super().join(member, batches, until)

    def report(self, member, report, until):
        self.reports.append(report)
        if not self.answers and self.notes_unanswered:
            self.answers = True
            super().report(member, report, until)
            self.answers = False
        return super().report(member, report, until)


class Rig:
    def __init__(self, queue_bytes=1 << 20):
        self.clock = ManualClock()
        self.directory = Told(self.clock)
        self.held = HeldChunks()
        self.reporter = Reporter(self.directory, Life(ADA), self.held, self.clock, queue_bytes)

    def emit(self, change, keys, tier="memory"):
        self.held.apply(CacheEvent(change, tier, keys), [self.reporter.queue])

    def store(self, *numbers, tier="memory"):
        self.emit(Change.STORED, [KEYS[n] for n in numbers], tier)

    def remove(self, *numbers, tier="memory"):
        self.emit(Change.REMOVED, [KEYS[n] for n in numbers], tier)

    def turn(self, seconds=0.05):
        self.clock.advance(seconds)
        return self.reporter.turn()

    def settle(self):
        """Take turns until nothing is due before the next heartbeat."""
        for _ in range(20):
            pause = self.reporter.turn()
            if pause > 0.05 and not len(self.reporter.queue):
                return
            self.clock.advance(max(pause, 0.0))
        raise AssertionError("it does not settle")

    @property
    def known(self):
        found = self.directory.locate(KEYS, deadline())
        return {n for n, row in enumerate(found) if row}


def test_a_node_joins_with_all_it_holds_the_newest_first():
    rig = Rig()
    rig.store(*range(5))
    rig.settle()
    assert rig.directory.snapshots == [[[KEYS[n] for n in (4, 3, 2, 1, 0)]]]
    assert rig.known == set(range(5))


def test_a_chunk_is_held_until_the_last_tier_has_let_it_go():
    rig = Rig()
    rig.settle()
    rig.store(0, 1)
    rig.store(0, tier="disk")
    rig.remove(0, 1)
    rig.settle()
    assert rig.known == {0}
    rig.remove(0, tier="disk")
    rig.settle()
    assert rig.known == set()


def test_what_comes_and_goes_between_two_reports_is_not_reported():
    rig = Rig()
    rig.store(0)
    rig.settle()
    rig.store(1, 2)
    rig.remove(0, 2)
    rig.store(0)
    rig.settle()
    assert [(list(r.added), list(r.removed)) for r in rig.directory.reports] == [([KEYS[1]], [])]
    assert rig.known == {0, 1}


def test_a_report_that_was_not_answered_is_sent_again_as_it_was():
    for noted in (False, True):
        rig = Rig()
        rig.settle()
        rig.directory.answers, rig.directory.notes_unanswered = False, noted
        rig.store(0, 1)
        rig.reporter.turn()
        rig.remove(0)
        rig.store(2)
        rig.directory.answers = True
        assert rig.turn(0.1) > 0.5, "it is left alone for a heartbeat"
        rig.clock.advance(2.0)
        rig.settle()
        assert rig.known == {1, 2}
        assert len(rig.directory.snapshots) == 1


def test_whatever_a_directory_raises_it_is_informed_later(caplog):
    rig = Rig()
    rig.store(0)
    right, rig.directory.join = rig.directory.join, lambda *_: 1 / 0
    assert rig.turn() >= 1.0
    for _ in range(5):
        rig.clock.advance(2.0)
        rig.turn()
    (line,) = caplog.messages
    assert "the directory is not informed: ZeroDivisionError: " in line

    words = iter(["refused", "no answer in time", "no route"])

    def away(*_):
        raise StoreUnreachable(next(words))

    rig.directory.join = away
    for _ in range(3):
        rig.clock.advance(19.0)
        rig.turn()
    assert not next(words, "")
    assert "StoreUnreachable" in caplog.messages[1], "another cause is another line"
    rig.directory.join = right
    rig.clock.advance(60.0)
    rig.settle()
    assert rig.known == {0}
    assert "the directory is informed again after " in caplog.messages[2]
    assert len(caplog.messages) == 3


def test_a_name_that_another_process_has_is_taken_a_heartbeat_after_it_is_free():
    """However long the process had it: its successor may have waited through a hand-over."""
    rig, beat = Rig(), 1.0
    rig.store(0)
    right = rig.directory.join

    def taken(*_):
        raise StoreBusy("another process is 'ada' at present")

    rig.directory.join = taken
    for _ in range(20):
        assert rig.turn(beat) <= beat
    rig.directory.join = right
    rig.turn(beat)
    assert rig.known == {0}


def test_a_queue_that_is_full_ends_in_a_new_snapshot():
    rig = Rig(queue_bytes=1000)
    rig.settle()
    rig.store(*range(40))
    assert len(rig.reporter.queue) == 0
    rig.settle()
    assert rig.known == set(range(40))
    assert rig.reporter.joins == 2


def test_many_changes_go_in_reports_that_the_port_allows():
    rig = Rig(queue_bytes=1 << 24)
    rig.settle()
    many = [chunk_key(f"many{n}") for n in range(REPORT_KEYS * 2 + 5)]
    rig.emit(Change.STORED, many)
    rig.settle()
    assert [len(r.added) for r in rig.directory.reports] == [REPORT_KEYS, REPORT_KEYS, 5]
    assert all(rig.directory.locate(many, deadline()))


def test_a_life_that_is_over_reports_nothing_any_more(caplog):
    rig = Rig()
    rig.settle()
    rig.directory.join(Member("ada", 2), [], deadline())
    rig.store(0)
    while not rig.reporter.superseded:
        rig.turn(1.0)
    assert "has a later life" in caplog.text
    assert rig.turn() == float("inf")
    assert rig.known == set()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "remove", "turn", "turn", "away", "back", "forget"]),
        st.lists(st.integers(0, 39), max_size=12),
        st.sampled_from(["memory", "disk"]),
    ),
    max_size=40,
)


@settings(max_examples=80)
@given(steps=STEPS, noted=st.booleans(), queue=st.sampled_from([800, 1 << 20]))
def test_the_directory_ends_up_knowing_what_the_tiers_hold(steps, noted, queue):
    rig, tiers = Rig(queue), {"memory": set(), "disk": set()}
    rig.directory.notes_unanswered = noted
    for what, numbers, tier in steps:
        if what in ("store", "remove"):
            getattr(rig, what)(*numbers, tier=tier)
            change = tiers[tier].update if what == "store" else tiers[tier].difference_update
            change(numbers)
        elif what == "forget":
            rig.directory.forget()
        elif what == "turn":
            rig.turn(0.3)
        else:
            rig.directory.answers = what == "back"
    rig.directory.answers = True
    for _ in range(12):
        rig.turn(9.0)
        rig.settle()
    assert rig.known == tiers["memory"] | tiers["disk"]


@pytest.fixture
def fleet():
    """A registry with a directory that tests hold, too."""
    registry, directory = discover(), Told(SystemClock())
    spec = AdapterSpec("directory", "held", "the test's", lambda *_: directory, contract=2)
    registry.offer(Origin("test", ""), [spec])
    return registry, directory


def test_an_engine_reports_what_its_own_tiers_hold_also_from_before_and_leaves(fleet, tmp_path):
    registry, directory = fleet
    disk = {"root": str(tmp_path), "exclusive": True}
    wanted = {
        "chunk": {"size": CHUNK},
        "pool": {"bytes": 1 << 22},
        "tiers": [{"store": "memory"}, {"store": "disk", "settings": disk}],
        "directory": {"adapter": "held", "name": "ada", "address": "ada:7000"},
    }

    def held():
        (node,) = directory.nodes.values() or [None]
        return set() if node is None else set(node.keys)

    for first in (True, False):
        with build(load(environ={}, overrides=wanted), NAMESPACE, registry=registry) as engine:
            if first:
                engine.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
            count = len(PROMPT) // CHUNK
            until(lambda count=count: len(held()) == count)
            (member,) = directory.members(deadline())
            assert (member.name, member.address) == ("ada", "ada:7000")
            if not first:
                engine.clear()
                until(lambda: not held())
        assert directory.nodes == {}, "it has left"
        directory._closed = False


def test_a_node_s_cache_by_key_reports_and_leaves(fleet):
    registry, directory = fleet
    wanted = {"pool": {"bytes": 1 << 22}, "directory": {"adapter": "held", "name": "ada"}}
    some = specs(3)
    with ServedChunks(load(environ={}, overrides=wanted), registry, SystemClock()) as served:
        put(served.chunks, some)
        keys = [chunk.key for chunk in some]
        until(lambda: directory.nodes and directory.nodes["ada"].keys == set(keys))
        served.chunks.forget(keys[:1], soon())
        until(lambda: directory.nodes["ada"].keys == set(keys[1:]))
    assert directory.nodes == {}


def test_a_tier_and_a_package_that_are_not_there_are_named(fleet):
    registry, _ = fleet
    wanted = {"chunk": {"size": CHUNK}, "directory": {"adapter": "held", "tiers": ["memroy"]}}
    with pytest.raises(ConfigError, match=r"directory.tiers .* no tier 'memroy'.*memory"):
        build(load(environ={}, overrides=wanted), NAMESPACE, registry=registry)
    del registry.adapters["peers", "service"]
    with pytest.raises(ConfigError, match=r"directory.adapter .*: pip install hexkv-peers$"):
        build(load(environ={}, overrides=wanted), NAMESPACE, registry=registry)


def test_a_directory_that_is_away_delays_nobody(fleet):
    registry, directory = fleet
    directory.answers = False
    wanted = {"chunk": {"size": CHUNK}, "directory": {"adapter": "held"}}
    settings = load(environ={}, overrides=wanted)
    with build(settings, NAMESPACE, registry=registry) as engine:
        device = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
        assert engine.store(PROMPT, device).stored_tokens
        assert engine.lookup(PROMPT).hit_tokens
        with pytest.raises(StoreUnreachable):
            directory.members(deadline())
        observed = ObservedCache(engine)
        until(lambda: "StoreUnreachable" in engine.health().directory)
        assert "hexkv_directory_up{" in observed.metrics()
        assert observed.unready() == "", "requests go on"
        assert observed.degraded().startswith("the directory is not informed: StoreUnreachable")
        directory.answers = True
        until(lambda: engine.health().directory == "")
        assert observed.degraded() == ""


def test_each_replica_is_told_by_itself():
    clock = SystemClock()

    class Two(DictDirectory):
        replicas = (Told(clock), Told(clock))

    two = Two(clock)
    two.replicas[1].answers = False
    with Reporting(two, Life(ADA), clock, ["memory"]) as reporting:
        reporting.emit(CacheEvent(Change.STORED, "memory", KEYS))
        reporting.emit(CacheEvent(Change.STORED, "shared", [chunk_key("elsewhere")]))
        until(lambda: all(two.replicas[0].locate(KEYS, deadline())))
        assert not two.replicas[1].nodes
        two.replicas[1].answers = True
        until(lambda: all(two.replicas[1].locate(KEYS, deadline())))
        assert not any(two.replicas[1].locate([chunk_key("elsewhere")], deadline()))


@pytest.mark.thorough
class TestReporting(EventSinkContract):
    """The reports of a node whose directory nothing is sent to."""

    @pytest.fixture
    def sink(self):
        clock = ManualClock()
        life = Life(Member("ada", 1))
        return Reporting(DictDirectory(clock), life, clock, {"memory", "disk"})

    @pytest.fixture
    def end(self, sink):
        return sink.close
