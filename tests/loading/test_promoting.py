"""What is loaded is promoted, and what is still to be loaded stays where it is meanwhile."""

from threading import Event

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.doubles.own_memory import OwnMemoryStore
from hexkv.core.tiers.rules import Writes
from hexkv.plugins.clock import SystemClock
from rigging import ALL, CHUNK, FRAME, LAYOUT, PATIENCE, tier


class Stopped(DiskStore):
    """A disk whose writes wait while it is told to."""

    def __init__(self, path):
        super().__init__(path)
        self.going = Event()
        self.going.set()

    def write(self, items, deadline):
        assert self.going.wait(PATIENCE)
        return super().write(items, deadline)


def test_promoting_does_not_push_out_what_is_to_be_loaded_next(rig, tmp_path):
    below, prompt = Stopped(tmp_path), list(range(8 * CHUNK))
    fast = tier("own", OwnMemoryStore(SystemClock()), 4 * FRAME)
    kv = HeapKV(LAYOUT, len(prompt)).compute(prompt)
    r = rig([fast, tier("disk", below, writes=Writes.EVICTED)], slots=8)
    r.engine.store(prompt, kv)
    r.engine.admin.move(ALL, "own", "disk")
    r.engine.store(prompt, kv)
    assert r.engine.lookup(prompt).tiers == {"disk": 4 * CHUNK, "own": 4 * CHUNK}
    below.going.clear()  # what is evicted now is on no tier for a while
    try:
        window = HeapKV(LAYOUT, len(prompt))
        assert r.engine.retrieve(prompt, window).hit_tokens == len(prompt)
    finally:
        below.going.set()
    assert window.agrees(kv, len(prompt))
