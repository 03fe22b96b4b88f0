"""Tiers that come and go from several threads at once, and stores that are slow to leave."""

import random
from threading import Event, Thread, current_thread

import rigging
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.engine.engine import Deadlines
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore
from hexkv.plugins.threads import Threads
from rigging import CHUNK, LAYOUT, attach, tier

PROMPT = random.Random(3).choices(range(50_000), k=4 * CHUNK)


def computed():
    return HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)


def memory(name="memory"):
    return tier(name, MemoryStore(ManualClock()))


def test_two_tiers_that_come_at_once_both_stay(rig):
    r = rig([memory()])
    other = Thread(target=r.engine.admin.stack.attach, args=(memory("other"), None))

    class Meanwhile:
        """A position that is asked for in the middle of an attach."""

        def __index__(self):
            other.start()
            other.join(0.05)  # as long as the first is not done it may have to wait
            return 1

    r.engine.admin.stack.attach(memory("one"), Meanwhile())
    other.join(60)
    assert [health.name for health in r.engine.health().tiers] == ["memory", "one", "other"]


def test_a_tier_may_take_the_name_of_one_that_is_on_its_way_out(rig, tmp_path):
    writing, go_on, soon = Event(), Event(), Event()

    class Slow(DiskStore):
        def write(self, items, deadline):
            writing.set()
            assert go_on.wait(60)
            return super().write(items, deadline)

    r = rig([memory(), tier("disk", Slow(tmp_path / "old"))], clock=SystemClock())
    r.engine.store(PROMPT, computed(), wait=False)
    assert writing.wait(60)
    leaving = Thread(target=r.engine.admin.detach, args=("disk",))
    leaving.start()
    while len(r.engine.health().tiers) > 1 and not soon.wait(0.001):
        pass
    attach(r.engine, tier("disk", DiskStore(tmp_path / "new")))
    go_on.set()
    leaving.join(60)
    assert r.engine.clear(tiers=["memory"]).chunks == 4
    assert r.engine.store(PROMPT, computed()).tiers["disk"] == len(PROMPT)


def test_a_store_is_never_closed_by_the_thread_that_must_come_back(rig, tmp_path, monkeypatch):
    closed_by, go_on = [], Event()

    class Telling(DiskStore):
        def close(self):
            closed_by.append(current_thread())
            super().close()

    class Late(Threads):
        """Workers that begin to close a store only when they are let."""

        def run(self, lane, step):
            super().run(lane, (lambda: go_on.wait(60) and step()) if "/close" in lane else step)

    monkeypatch.setattr(rigging, "Threads", Late)
    soon = Deadlines(close=0.01)
    r = rig([tier("disk", Telling(tmp_path))], clock=SystemClock(), deadlines=soon)
    r.engine.close()
    assert closed_by == []
    go_on.set()
    settled = Event()
    while not closed_by and not settled.wait(0.001):
        pass
    assert closed_by != [current_thread()]
