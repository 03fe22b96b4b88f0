"""NIXL itself is dead, slow or lies, between the store and a real directory.

What the contract breaks (the directory, the object server) is in ``test_store.py``; a disk that is
full or read-only for real, under an engine, in ``tests/faults/test_bad_input.py``.
"""

import os

import pytest

pytest.importorskip("nixl_cu12")

from configured import PROMPT, built, computed, hit, settle
from hexkv.adapters.nixl.storage import mover
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.waiting import promptly
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Failed, Hit, Item, Miss, Stored, StoreUnreachable, TimedOut
from processes import until

A, B = (chunk_key(name) for name in "ab")


class Between:
    """Everybody's real agent, which does not do its part while *fault* says so."""

    fault = ""

    def __init__(self, agent):
        self._agent = agent

    def __getattr__(self, name):
        return getattr(self._agent, name)

    def transfer(self, handle):
        if Between.fault == "dead":
            raise RuntimeError("the backend is gone")
        if Between.fault == "lies":
            return "DONE"
        state = self._agent.transfer(handle)
        return "PROC" if Between.fault == "slow" else state

    def check_xfer_state(self, handle):
        state = self._agent.check_xfer_state(handle)
        return "PROC" if Between.fault == "slow" else state


@pytest.fixture(autouse=True)
def between(monkeypatch):
    real = mover.made
    monkeypatch.setattr(mover, "made", lambda *arguments: Between(real(*arguments)))
    monkeypatch.setattr(Between, "fault", "")


@pytest.fixture
def store(open_nixl, tmp_path):
    return open_nixl(root=str(tmp_path), staging_bytes=1 << 20)


def put(store, key, frame, until=None):
    return store.write([Item(key, memoryview(frame))], until or deadline())[0]


def get(store, key, until=None):
    sink = ListSink()
    (outcome,) = store.read([key], sink, until or deadline())
    return sink.data(0) if isinstance(outcome, Hit) else outcome


def soon():
    return Deadline.after(SystemClock(), 0.3)


@pytest.mark.thorough
def test_a_slow_library_costs_deadlines_and_keeps_what_it_may_write_to(store, tmp_path):
    frame, other = os.urandom(400_000), os.urandom(400_000)
    assert put(store, A, frame) == Stored(len(frame))
    Between.fault = "slow"
    for call in (lambda: get(store, A, soon()), lambda: put(store, B, other, soon())):
        assert promptly(call, 20.0) == TimedOut()
    # Both still have their staging memory: there is no room for a third, and nobody waits for it.
    assert promptly(lambda: get(store, A, soon()), 20.0) == TimedOut()
    assert list(store.contains([A, B], deadline())) == [True, False]
    Between.fault = ""
    until(lambda: store._mover._staging._free == [(0, 1 << 20)])
    assert get(store, A) == frame
    assert put(store, B, other) == Stored(len(other))
    assert get(store, B) == other
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.thorough
def test_a_store_is_closed_at_once_while_its_library_is_slow(store):
    put(store, A, bytes(5000))
    Between.fault = "slow"
    assert promptly(lambda: get(store, A, soon()), 20.0) == TimedOut()
    promptly(store.close, 20.0)
    Between.fault = ""


@pytest.mark.thorough
def test_a_dead_library_is_unreachable_and_back_by_itself(store, tmp_path):
    frame = os.urandom(50_000)
    put(store, A, frame)
    Between.fault = "dead"
    for _ in range(20):
        for outcome in (get(store, A), put(store, B, frame)):
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, StoreUnreachable)
    assert not list(tmp_path.rglob("*.tmp"))
    Between.fault = ""
    assert put(store, B, frame) == Stored(len(frame))
    assert [get(store, key) for key in (A, B)] == [frame, frame]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["lies", "dead"])
def test_an_engine_has_nothing_wrong_of_a_library_that_lies_or_is_dead(fault, tmp_path):
    """Said to be done, staging memory still has what passed through it before."""
    with built(tmp_path, memory=False, store="nixl") as engine:
        assert engine.store(PROMPT, computed()).stored_tokens == len(PROMPT)
        assert hit(engine) == len(PROMPT)
        other = [token + 1 for token in PROMPT]
        Between.fault = fault
        assert hit(engine) < len(PROMPT)  # looks at each token that it counts
        engine.store(other, computed(other))
        hit(engine, other)
        Between.fault = ""
        settle(engine)
        hit(engine, other)
        third = [token + 2 for token in PROMPT]
        until(lambda: engine.store(third, computed(third)).dropped_tokens == 0)
        until(lambda: hit(engine, third) == len(third))
        settle(engine)
        assert not engine.health().leases


@pytest.mark.thorough
def test_frames_of_a_batch_move_ahead_as_far_as_there_is_memory_for_them(open_nixl, tmp_path):
    """Room for one frame, for two, and for all; some absent, some refused, some empty."""
    keys = [chunk_key(f"batch {i}") for i in range(9)]
    frames = {
        key: os.urandom(size) for key, size in zip(keys, [700_000, 0, 1 << 20] * 3, strict=True)
    }
    del frames[keys[3]]

    class Sink(ListSink):
        def room(self, index, size):
            return None if index == 5 else super().room(index, size)

    for mib in (1, 2, 32):
        store = open_nixl(root=str(tmp_path / str(mib)), staging_bytes=mib << 20)
        for key, frame in frames.items():
            assert put(store, key, frame) == Stored(len(frame))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            sink = Sink()
            outcomes = store.read(keys, sink, deadline())
            for i, key in enumerate(keys):
                if i in (3, 5):
                    assert isinstance(outcomes[i], Miss)
                else:
                    assert (outcomes[i], sink.data(i)) == (Hit(len(frames[key])), frames[key])
        Between.fault = "slow"
        late = promptly(lambda: store.read(keys, ListSink(), soon()), 20.0)  # noqa: B023
        assert late[0] == TimedOut()
        Between.fault = ""
        until(lambda: store._mover._staging._free == [(0, store._mover._staging.size)])  # noqa: B023
        until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # noqa: B023
