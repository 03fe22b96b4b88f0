"""Stores beside a host's steps: how much Python they run without a pause for other threads."""

import re
import sys
import threading
from contextlib import suppress

import pytest
from stepping import Interrupt

from counting import no_collection
from dict_store import DictStore
from hexkv.contracts.doubles import ManualClock, RecordingTelemetry
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core import runtime
from hexkv.core.requests import store
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import ChunkSpec, Deadline
from rigging import CHUNK, FRAME, LAYOUT, rigging, tier

MOST = 4_600
"""Bytecodes from one pause to the next: some 0.1 ms. Work of 80 us may be before them."""

OTHERS = re.compile("/contracts/|/tests/")
"""Files of the host's side of a store, and of this test."""


class Bytecodes:
    """Counts the bytecodes of each thread from one pause to the next."""

    def __init__(self):
        self._here = threading.local()
        self.stretches = []
        self.queued = []
        """Bytes whose copies a device queued, by stretch."""

    def trace(self, frame, event, _):
        if event == "call":
            if OTHERS.search(frame.f_code.co_filename):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self._here.count = getattr(self._here, "count", 0) + 1
        return self.trace

    def cut(self):
        self.stretches.append((getattr(self._here, "count", 0), threading.current_thread().name))
        self.queued.append(getattr(self._here, "queued", 0))
        self._here.count = self._here.queued = 0

    def queue(self, size):
        self._here.queued = getattr(self._here, "queued", 0) + size


@pytest.fixture
def bytecodes(monkeypatch):
    counted, pause = Bytecodes(), runtime.Stretch.pause

    def pausing(stretch):
        counted.cut()
        pause(stretch)

    monkeypatch.setattr(runtime.Stretch, "pause", pausing)
    before = sys.gettrace()
    with no_collection():
        threading.settrace(counted.trace)
        yield counted
        threading.settrace(None)
        sys.settrace(before)


class Counting(DictStore):
    """Counts its calls."""

    def write(self, items, deadline):
        self.writes += 1
        return super().write(items, deadline)

    def delete(self, keys, deadline):
        self.deletes += 1
        return super().delete(keys, deadline)

    writes = deletes = 0


class Queuing(HeapKV):
    """Notes how much it copies; each call takes a real device 0.1 ms for every 32 MiB."""

    def gather(self, spans, layers=None):
        self.bytecodes.queue(sum(len(span.data) for span in spans))
        return super().gather(spans, layers)


def test_a_store_beside_steps_pauses_after_each_few_bytecodes_and_copies(bytecodes, monkeypatch):
    chunk = LAYOUT.chunk_bytes(CHUNK)
    monkeypatch.setattr(store, "_QUEUED", 4 * chunk - 1)
    monkeypatch.setattr(Queuing, "bytecodes", bytecodes, raising=False)
    prompts = [[n + 1000 * turn for n in range(80 * CHUNK)] for turn in range(3)]
    with rigging() as build:
        clock = ManualClock()
        disk = Counting({})
        tiers = [tier("memory", MemoryStore(clock), 90 * FRAME), tier("disk", disk, 90 * FRAME)]
        rig = build(tiers, clock=clock, slots=400)
        for turn, prompt in enumerate(prompts):
            device = Queuing(LAYOUT, len(prompt)).compute(prompt)
            space = rig.engine.key_space()
            keys = rig.engine.chunk_keys(prompt)
            wanted = [ChunkSpec(key, space.identity, space.layout, CHUNK) for key in keys]
            sys.settrace(bytecodes.trace)
            if turn == 2:  # as SGLang's pages are saved
                report = rig.engine.chunks.save(wanted, device, Deadline(clock, 60.0), wait=False)
            else:
                report = rig.engine.store(prompt, device, wait=False)
            sys.settrace(None)
            bytecodes.cut()
            assert not report.dropped_tokens
            rig.engine.flush()
    assert len(bytecodes.stretches) > 300
    assert max(bytecodes.stretches)[0] <= MOST
    assert sum(bytecodes.queued) == sum(map(len, prompts)) // CHUNK * chunk
    assert max(bytecodes.queued) == 3 * chunk
    assert 0 < disk.deletes <= disk.writes, "a call of a slower store may be a round trip"


class Halved(HeapKV):
    """Queues the first copy, which does not end before it is let, and fails at the second."""

    ended, calls = False, 0

    def gather(self, spans, layers=None):
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("the device is gone")
        return self

    def wait(self, _):
        return self.ended


@pytest.mark.thorough
def test_a_copy_that_fails_leaves_those_queued_before_it_their_memory(monkeypatch):
    monkeypatch.setattr(store, "_QUEUED", LAYOUT.chunk_bytes(CHUNK))
    prompt = list(range(3 * CHUNK))
    with rigging() as build:
        clock = ManualClock()
        rig = build([tier("memory", MemoryStore(clock), 90 * FRAME)], clock=clock)
        device = Halved(LAYOUT, len(prompt))
        assert rig.engine.store(prompt, device, wait=False).dropped_tokens == len(prompt)
        assert device.calls == 2
        assert [*rig.pool.ledger()] == ["late copy"]
        device.ended = True
        assert not rig.engine.lookup(prompt).hit_tokens
        assert rig.at_rest()


class SlowClock(ManualClock):
    """A clock on a machine that takes 20 us from one reading to the next."""

    def now(self):
        self.advance(20e-6)
        return super().now()


class Executor:
    """Takes down the seconds for which it is to wait."""

    def __init__(self):
        self.waits = []

    def wait(self, condition, ready, deadline):
        self.waits.append(deadline.remaining())
        return ready()


def test_a_pause_waits_also_on_a_slow_machine_and_a_store_by_layers_takes_none(monkeypatch):
    executor = Executor()
    slow = runtime.Runtime(clock=SlowClock(), executor=executor, telemetry=RecordingTelemetry())
    for line in range(10):
        with suppress(KeyboardInterrupt), Interrupt(line), runtime.unpaused():
            pass
    stretch = runtime.Stretch(slow)
    for _ in range(20):
        stretch.pause()
    assert len(executor.waits) >= 3
    assert min(executor.waits) > 0, "a wait of no time gives the interpreter's lock to no thread"

    pauses, prompt = [], list(range(20 * CHUNK))
    monkeypatch.setattr(runtime, "_never", lambda: pauses.append(threading.get_ident()) or False)
    with rigging() as build:
        clock = SlowClock()
        rig = build([tier("memory", MemoryStore(clock), 90 * FRAME)], clock=clock, slots=100)
        device = HeapKV(LAYOUT, len(prompt)).compute(prompt)
        with rig.engine.store_layers(prompt, device, wait=False) as layers:
            for layer in range(LAYOUT.layers):
                layers.layer_done(layer)
            assert layers.result().stored_tokens == len(prompt)
        assert threading.get_ident() not in pauses, "it is the thread of the host's steps"
        rig.engine.clear()
        assert rig.engine.store(prompt, device, wait=False).stored_tokens == len(prompt)
        assert threading.get_ident() in pauses
