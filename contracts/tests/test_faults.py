"""What the faulty, slow and recording stores promise, over a plain store in memory."""

from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.doubles import HeapBlock, ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.doubles.own_memory import OwnMemoryStore
from hexkv.contracts.faults import (
    Call,
    Fault,
    FaultyStore,
    RecordingStore,
    Scripted,
    Seeded,
    SlowStore,
)
from hexkv.contracts.kit.cases import each
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import (
    Failed,
    Hit,
    Item,
    Miss,
    SharedMedium,
    Stored,
    StoreFull,
    StoreUnreachable,
    SupportsClear,
    SupportsLimit,
    SupportsOwnMemory,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
    TimedOut,
)

A, B = chunk_key("a"), chunk_key("b")
FRAMES = {A: b"\1" * 100, B: b"\2" * 100}


class Plain:
    """A store that can do nothing but what every store can."""

    def __init__(self):
        inner = MemoryStore(ManualClock())
        self.contains, self.read, self.write = inner.contains, inner.read, inner.write
        self.delete, self.close = inner.delete, inner.close


class SharedPlain(Plain):
    """Likewise, beside others."""

    shared = True


def memory():
    return MemoryStore(ManualClock())


def items(*keys):
    return [Item(key, memoryview(FRAMES[key])) for key in keys]


def faulty(store=None, plan=None, *, written=True, **options):
    store = memory() if store is None else store
    if written:
        store.write(items(A, B), deadline())
    return FaultyStore(store, plan, **options)


def read(store, *keys):
    sink = ListSink()
    (outcome, *_) = store.read(keys, sink, deadline())
    return outcome, sink.data(0)


@each("wrap", [FaultyStore, RecordingStore, lambda s: SlowStore(s, 1.0)])
def test_a_wrapped_store_has_the_abilities_of_the_store_inside_and_no_others(wrap):
    abilities = (
        SupportsScan,
        SupportsQuarantine,
        SupportsZeroCopy,
        SupportsRangeRead,
        SharedMedium,
        SupportsLimit,
        SupportsOwnMemory,
        SupportsClear,
    )
    for store in (Plain(), memory(), OwnMemoryStore(ManualClock()), SharedPlain()):
        wrapped = wrap(store)
        assert [isinstance(wrapped, a) for a in abilities] == [
            isinstance(store, a) for a in abilities
        ]


def test_without_a_plan_nothing_is_changed():
    store = faulty()
    assert read(store, A) == (Hit(100), FRAMES[A])
    assert list(store.contains([A, chunk_key("c")], deadline())) == [True, False]
    assert {entry.key for entry in store.scan()} == {A, B}
    assert list(store.delete([A], deadline())) == [True]
    assert read(store, A)[0] == Miss()
    block = HeapBlock(bytes(8192))
    store.put_lease([A], [block.lease("store")])
    (lent,) = store.get_lease([A], "test")
    assert block.owners == {"store": 1, "test": 1}
    lent.release()
    store.close()
    assert block.held == 0


@each("operation", ["contains", "read", "write", "delete", "scan"])
def test_an_error_is_raised_and_nothing_done(operation):
    store = faulty(plan=Scripted(**{operation: [Fault.ERROR]}), written=operation != "write")
    calls = {
        "contains": lambda: store.contains([A], deadline()),
        "read": lambda: read(store, A),
        "write": lambda: store.write(items(A), deadline()),
        "delete": lambda: store.delete([A], deadline()),
        "scan": lambda: list(store.scan()),
    }
    with pytest.raises(StoreUnreachable):
        calls[operation]()
    assert list(store.inner.contains([A], deadline())) == [operation != "write"]
    calls[operation]()  # its script is over


def test_an_unsure_call_is_done_and_raises_all_the_same():
    store = faulty(plan=Scripted(write=[Fault.UNSURE]), written=False)
    with pytest.raises(StoreUnreachable):
        store.write(items(A), deadline())
    assert read(store, A) == (Hit(100), FRAMES[A])


def test_one_chunk_may_fail_alone():
    store = faulty(plan=Seeded(3, {Fault.FAILED: 0.5}))
    outcomes = store.read([A, B] * 20, ListSink(), deadline())
    assert {type(outcome) for outcome in outcomes} == {Hit, Failed}


def test_a_crashed_store_fails_until_it_is_restarted():
    store = faulty(plan=Scripted(read=[None, Fault.CRASH]))
    assert read(store, A)[0] == Hit(100)
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="crashed"):
            read(store, A)
    store.restart()
    assert read(store, A)[0] == Hit(100)


def test_a_short_read_says_hit_and_leaves_the_end_unread():
    outcome, data = read(faulty(plan=Scripted(read=[Fault.SHORT])), A)
    assert outcome == Hit(100)
    assert data[:50] == FRAMES[A][:50]
    assert data[50:] != FRAMES[A][50:]


def test_a_flip_changes_one_bit_of_what_is_read():
    _, data = read(faulty(plan=Scripted(read=[Fault.FLIP])), A)
    assert sum((x ^ y).bit_count() for x, y in zip(data, FRAMES[A], strict=True)) == 1


def test_a_flip_of_a_write_stays_on_the_medium_and_spares_the_callers_buffer():
    store = faulty(plan=Scripted(write=[Fault.FLIP]), written=False)
    given_ = items(A)
    assert list(store.write(given_, deadline())) == [Stored(100)]
    assert bytes(given_[0].frame) == FRAMES[A]
    data = read(store, A)[1]
    assert sum((x ^ y).bit_count() for x, y in zip(data, FRAMES[A], strict=True)) == 1


def test_a_swap_gives_the_frame_of_another_chunk():
    store = faulty(plan=Scripted(read=[Fault.SWAP]))
    store.write(items(B), deadline())
    assert read(store, A) == (Hit(100), FRAMES[B])


def test_a_stale_answer_is_from_before_the_last_change():
    store = faulty(plan=Scripted(contains=[Fault.STALE, Fault.STALE], read=[Fault.STALE]))
    assert list(store.contains([A], deadline())) == [False]
    assert read(store, A)[0] == Miss()
    store.delete([A], deadline())
    assert list(store.contains([A], deadline())) == [True]


def test_a_lost_write_says_stored_and_keeps_nothing():
    store = faulty(plan=Scripted(write=[Fault.LOST]), written=False)
    assert list(store.write(items(A), deadline())) == [Stored(100)]
    assert read(store, A)[0] == Miss()


def test_a_full_medium_takes_nothing_until_there_is_room():
    store = faulty(written=False)
    store.full = True
    (outcome,) = store.write(items(A), deadline())
    assert isinstance(outcome.error, StoreFull)
    store.full = False
    assert list(store.write(items(A), deadline())) == [Stored(100)]


def test_a_hanging_call_returns_only_when_it_is_released():
    store, began, ended = faulty(), Event(), Event()

    class Begun(ListSink):
        def room(self, index, size):
            began.set()
            return super().room(index, size)

    sink = Begun()
    store.hang()

    def ask():
        store.read([A], sink, deadline())
        ended.set()

    thread = Thread(target=ask, daemon=True)
    thread.start()
    assert began.wait(60)
    assert not ended.is_set()
    assert sink.data(0) != FRAMES[A]  # it has the buffer, and nothing in it
    store.release()
    assert ended.wait(60)
    thread.join(60)
    assert sink.data(0) == FRAMES[A]


def test_time_passes_only_through_the_function_that_was_given():
    clock = ManualClock()
    store = SlowStore(memory(), 4.0, spend=clock.advance)
    before = clock.now()
    store.write(items(A), deadline(60.0, clock))
    store.contains([A], deadline(60.0, clock))
    assert read(store, A)[0] == Hit(100)
    assert clock.now() - before == pytest.approx(12.0)


def test_a_call_that_would_outlast_its_deadline_answers_at_it():
    clock = ManualClock()
    store = SlowStore(memory(), 4.0, spend=clock.advance)
    for seconds in (3.0, 1.0):
        limit = deadline(seconds, clock)
        assert list(store.write(items(A, B), limit)) == [TimedOut()] * 2
        assert clock.now() == limit.at
    assert list(store.inner.contains([A], deadline())) == [False]
    with pytest.raises(StoreUnreachable):
        store.contains([A], deadline(1.0, clock))


def test_a_recording_store_tells_what_it_was_asked_in_order():
    store = RecordingStore(memory())
    store.write(items(A, B), deadline())
    read(store, B)
    list(store.scan())
    store.close()
    assert store.calls == [
        Call("write", (A, B)),
        Call("read", (B,)),
        Call("scan"),
        Call("close"),
    ]


def test_a_faulty_store_can_be_closed_whatever_ails_it():
    store = faulty()
    store.hang()
    store.crash()
    store.close()


@given(st.integers(), st.dictionaries(st.sampled_from(Fault), st.floats(0.0, 0.1)))
def test_the_same_seed_makes_the_same_faults(seed, rates):
    plans = [Seeded(seed, rates, (0.1, 2.0)) for _ in range(2)]
    for _ in range(20):
        first, second = (plan.trouble("read", 5) for plan in plans)
        assert first == second
        assert 0.1 <= first.seconds <= 2.0
        assert set(first.chunks.values()) | ({first.call} - {None}) <= set(rates)
