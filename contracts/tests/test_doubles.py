"""The doubles are as strict as what they stand for."""

import pytest

from hexkv.contracts.doubles import (
    FREED,
    FRESH,
    HeapBlock,
    ListSink,
    ManualClock,
    RecordingEvents,
    RecordingTelemetry,
    chunk_key,
    deadline,
)
from hexkv.contracts.kit.cases import each
from hexkv.ports import (
    KEY_BYTES,
    PAGE,
    CacheEvent,
    Change,
    CounterName,
    EventSink,
    HistogramName,
    Telemetry,
    namespace_of,
)


def test_recorders_stand_for_their_ports():
    assert isinstance(RecordingTelemetry(), Telemetry)
    assert isinstance(RecordingEvents(), EventSink)


def test_a_manual_clock_moves_only_when_it_is_told_to():
    clock = ManualClock(now=5.0, wall=100.0)
    limit = deadline(2.0, clock)
    assert (clock.now(), clock.wall(), limit.expired) == (5.0, 100.0, False)
    clock.advance(2.0)
    assert (clock.now(), clock.wall(), limit.expired) == (7.0, 102.0, True)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1.0)


def test_a_deadline_of_nothing_has_expired():
    assert deadline(0).expired
    assert not deadline().expired


def test_keys_have_the_real_size_and_a_namespace():
    a, b, other = chunk_key("a"), chunk_key("b"), chunk_key("a", "other")
    assert {len(key) for key in (a, b, other)} == {KEY_BYTES}
    assert namespace_of(a) == namespace_of(b) != namespace_of(other)
    assert len({a, b, other}) == 3
    assert a == chunk_key("a")


@each("offset", [0, 1, 17])
def test_a_sink_gives_fresh_room_of_the_exact_size(offset):
    sink = ListSink(offset=offset)
    room = sink.room(3, 100)
    assert (len(room), bytes(room)) == (100, bytes([FRESH]) * 100)
    room[:] = b"x" * 100
    assert sink.data(3) == b"x" * 100
    assert sink.data(0) is None
    assert sink.calls == [(3, 100)]


def test_the_newer_room_of_an_index_counts():
    sink = ListSink()
    old = sink.room(0, 4)
    new = sink.room(0, 2)
    old[:] = b"old!"
    new[:] = b"ok"
    assert sink.data(0) == b"ok"


def test_a_sink_refuses_what_it_was_told_to():
    sink = ListSink(refuse={1})
    assert sink.room(1, 10) is None
    assert sink.room(0, 0) is not None
    assert sink.data(0) == b""
    assert sink.data(1) is None


@each("place", [-1, 10])
def test_a_sink_sees_what_is_written_beside_the_room(place):
    sink = ListSink()
    room = sink.room(0, 10)
    assert not sink.spilled(0)
    backing, start, _ = sink._given[0]
    backing[start + place] = 0
    assert sink.spilled(0)
    del room


def test_a_sink_notices_who_keeps_its_memory():
    sink = ListSink()
    room = sink.room(0, 10)
    with pytest.raises(BufferError):
        sink.reclaim()
    room.release()
    sink.reclaim()


def test_a_block_knows_its_holders_and_poisons_what_nobody_holds():
    block = HeapBlock(bytes(2 * PAGE))
    with block.lease("caller") as lease:
        share = lease.share("store")
        assert block.owners == {"caller": 1, "store": 1}
        assert (len(share.frame), len(share.payload)) == (2 * PAGE, PAGE)
    assert block.owners == {"store": 1}
    assert set(block.memory) == {0}
    share.release()
    share.release()
    assert block.held == 0
    assert set(block.memory) == {FREED}


def test_a_released_lease_is_of_no_use():
    lease = HeapBlock(bytes(PAGE)).lease()
    lease.release()
    with pytest.raises(ValueError, match="after its release"):
        _ = lease.frame
    with pytest.raises(ValueError, match="after its release"):
        lease.share("late")


def test_telemetry_adds_up():
    telemetry = RecordingTelemetry()
    telemetry.count(CounterName.MISSES, 2, tier="disk", reason="absent")
    telemetry.count(CounterName.MISSES, 1, tier="memory", reason="evicted")
    telemetry.observe(HistogramName.READ, 0.5, tier="disk")
    assert telemetry.total(CounterName.MISSES) == 3
    assert telemetry.total(CounterName.MISSES, tier="disk") == 2
    assert telemetry.total(CounterName.HITS) == 0
    assert telemetry.durations == [(HistogramName.READ, "disk", 0.5)]


def test_events_are_kept_in_order():
    events = RecordingEvents()
    both = [CacheEvent(change, "disk", [chunk_key("a")]) for change in Change]
    for event in both:
        events.emit(event)
    assert events.events == both
