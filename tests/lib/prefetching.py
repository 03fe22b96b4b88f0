"""A prompt in a store that reads only while its gate is open, for tests of prefetches."""

import random
from threading import Event

from dict_store import ScanningStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.memory.store import MemoryStore
from rigging import CHUNK, LAYOUT, tier

PROMPT = random.Random(2).choices(range(50_000), k=10 * CHUNK + 5)
FULL = 10 * CHUNK


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def empty(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens))


def loaded(r, target, by_layers, **options):
    if not by_layers:
        return r.engine.retrieve(PROMPT, target, lookup_id="a", **options)
    with r.engine.retrieve_layers(PROMPT, target, lookup_id="a", **options) as layers:
        assert len(list(layers)) == LAYOUT.layers
        return layers.result()


class Gated(ScanningStore):
    """A store that reads only while the gate is open, and counts what it reads."""

    def __init__(self, medium=None):
        super().__init__({} if medium is None else medium)
        self.gate = Event()
        self.gate.set()
        self.reads = []
        self.questions = 0

    def read(self, keys, sink, deadline):
        self.reads.extend(keys)
        assert self.gate.wait(30)
        return super().read(keys, sink, deadline)

    def contains(self, keys, deadline):
        self.questions += 1
        assert self.gate.wait(30)
        return super().contains(keys, deadline)


def filled(rig, store, *, index=True, memory=False, **options):
    """An engine over *store*, which holds the prompt already."""
    first = rig([tier("slow", Gated(store.medium))])
    first.engine.store(PROMPT, computed())
    first.engine.flush()
    fast = [tier("memory", MemoryStore(ManualClock()))] if memory else []
    again = tier("slow", store) if index else TierPlan("slow", store)
    r = rig([*fast, again], **options)
    r.engine.flush()
    return r
