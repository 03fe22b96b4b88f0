"""Frames wait for a full queue, and are the probe of a tier that was off."""

from threading import Event, Thread

import pytest

from dict_store import ScanningStore
from hexkv.archives.carrier import Carrier
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.rules import Writes
from hexkv.ports import PAGE, Deadline
from rigging import CHUNK, FRAME, LAYOUT, rigging, tier

PROMPT = list(range(2 * CHUNK))


class Gated(ScanningStore):
    """A store that writes only while its gate is open."""

    def __init__(self):
        super().__init__({})
        self.gate = Event()
        self.gate.set()

    def write(self, items, deadline):
        assert self.gate.wait(30)
        return super().write(items, deadline)


@pytest.fixture
def carried():
    """A cache with a tier that takes nothing by itself, a carrier, and blocks with two frames."""
    with rigging() as build:
        target = tier("target", Gated(), writes=Writes.NONE, lane=LaneRules(1, FRAME))
        r = build([tier("source", ScanningStore({})), target])
        r.engine.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
        carrier = Carrier(r.engine.admin.stack, "archive", 30.0)
        source = r.tiers["source"]
        blocks = []
        for key, frame in carrier.read(source.index.keys(), [source]):
            blocks.append(block := carrier.room(len(frame) - PAGE))
            block.frame[:] = frame
            carrier.verify(block, key)
        yield r, carrier, blocks
        for block in blocks:
            block.release()


def arrived(r, pending):
    return pending.wait(Deadline.after(r.clock, 30)) and all(pending.result)


def test_a_tier_that_was_off_takes_a_frame_after_its_pause(carried):
    r, carrier, (block, _) = carried
    target = r.tiers["target"]
    target.writing.breaker.failed(at_once=True)
    assert target.refuses
    r.clock.advance(2)
    assert arrived(r, carrier.write(block, [target])["target"])


def test_a_frame_waits_for_room_in_a_full_queue(carried):
    r, carrier, (first, second) = carried
    target, written = r.tiers["target"], []
    target.store.gate.clear()
    carrier.write(first, [target])
    writer = Thread(target=lambda: written.append(carrier.write(second, [target])["target"]))
    writer.start()
    while target.writing._line.first is None and writer.is_alive():
        writer.join(0.001)
    target.store.gate.set()
    writer.join(30)
    assert arrived(r, written[0])
