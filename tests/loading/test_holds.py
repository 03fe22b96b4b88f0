"""A hold is a load that lasts: it is counted, and copies to faster tiers what it brings."""

import pytest

from hexkv.plugins.clock import SystemClock
from hexkv.ports import CounterName, Deadline, HistogramName
from prompts import FULL, PROMPT, computed, disk, memory
from rigging import CHUNK, MEMORY, PATIENCE

CHUNKS = FULL // CHUNK


def soon():
    return Deadline.after(SystemClock(), PATIENCE)


@pytest.fixture
def rig_of_two(rig, tmp_path):
    """A rig whose disk has the prompt, and whose memory has nothing of it."""
    made = rig([memory(), disk(tmp_path)], seeded=False, clock=SystemClock())
    made.engine.store(PROMPT, computed())
    assert made.engine.flush(PATIENCE)
    made.engine.clear(PROMPT, tiers=["memory"])
    return made


def wanted(engine):
    space = engine.key_space()
    return [space.spec(key[len(space.prefix) :], CHUNK) for key in engine.chunk_keys(PROMPT)]


def test_what_a_hold_brings_from_a_slow_tier_is_kept_by_a_faster_one(rig_of_two):
    engine = rig_of_two.engine
    specs = wanted(engine)
    keys = [spec.key for spec in specs]
    assert set(engine.chunks.match(keys, soon())) == {"disk"}
    with engine.chunks.hold(specs, "host", soon()) as hold:
        assert hold.wait(soon())
    assert set(engine.chunks.match(keys, soon())) == {"memory"}
    assert set(rig_of_two.pool.ledger()) == {MEMORY}
    assert engine.lookup(PROMPT).tiers == {"memory": FULL}


def test_a_hold_is_counted_once_as_a_load_is(rig_of_two):
    engine, told = rig_of_two.engine, rig_of_two.telemetry
    specs = wanted(engine)
    strange = [spec._replace(key=bytes(reversed(spec.key))) for spec in specs[:3]]
    before = told.total(CounterName.HITS)
    with engine.chunks.hold([*specs, *strange], "host", soon()) as hold:
        assert hold.wait(soon())
        assert hold.wait(soon())
        assert hold.done
    assert told.total(CounterName.HITS, tier="disk") - before == CHUNKS
    assert told.counts[CounterName.MISSES, "", "absent"] == 3
    assert told.total(CounterName.LOOKUPS) == told.total(CounterName.HITS) + told.total(
        CounterName.MISSES
    )
    assert [name for name, _, _ in told.durations].count(HistogramName.RETRIEVE) == 1


def test_a_hold_that_nobody_waited_for_counts_nothing(rig_of_two):
    engine, told = rig_of_two.engine, rig_of_two.telemetry
    engine.chunks.hold(wanted(engine), "host", soon()).release()
    assert told.total(CounterName.LOOKUPS) == 0
