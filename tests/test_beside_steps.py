"""Stores beside a host's steps: how much Python they run without a pause for other threads."""

import re
import sys
import threading

import pytest

from dict_store import DictStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core import runtime
from hexkv.plugins.memory.store import MemoryStore
from rigging import CHUNK, FRAME, LAYOUT, rigging, tier

MOST = 5_000
"""Bytecodes from one pause to the next: 0.1 to 0.2 ms."""

OTHERS = re.compile("/contracts/|/tests/")
"""Files of the host's side of a store, and of this test."""


class Bytecodes:
    """Counts the bytecodes of each thread from one pause to the next."""

    def __init__(self):
        self._here = threading.local()
        self.stretches = []

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
        self._here.count = 0


@pytest.fixture
def bytecodes(monkeypatch):
    counted, pause = Bytecodes(), runtime.Stretch.pause

    def pausing(stretch):
        counted.cut()
        pause(stretch)

    monkeypatch.setattr(runtime.Stretch, "pause", pausing)
    before = sys.gettrace()
    threading.settrace(counted.trace)
    yield counted
    threading.settrace(None)
    sys.settrace(before)


def test_a_store_beside_steps_pauses_after_each_few_bytecodes(bytecodes):
    prompts = [[n + 1000 * turn for n in range(32 * CHUNK)] for turn in range(3)]
    with rigging() as build:
        clock = ManualClock()
        tiers = [tier("memory", MemoryStore(clock), 40 * FRAME), tier("disk", DictStore({}))]
        rig = build(tiers, clock=clock, slots=160)
        for prompt in prompts:
            device = HeapKV(LAYOUT, len(prompt)).compute(prompt)
            sys.settrace(bytecodes.trace)
            report = rig.engine.store(prompt, device, wait=False)
            sys.settrace(None)
            bytecodes.cut()
            assert not report.dropped_tokens
            rig.engine.flush()
    assert len(bytecodes.stretches) > 100
    assert max(bytecodes.stretches)[0] <= MOST
