"""Maintenance that gave up while a store still reads, or writes: its blocks are not given away."""

import random
from threading import Event, Thread

import pytest

from dict_store import ScanningStore
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import DType, KVLayout, Namespace, frame_bytes
from processes import until
from rigging import CHUNK, chosen, tier

PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK)
ZSTD = ZstdSerde()
WIDE = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=256)
FRAME = frame_bytes(WIDE.chunk_bytes(CHUNK))


class Stands(ScanningStore):
    """Stands still with a frame of the caller's in its hands, until it may go on."""

    def __init__(self):
        super().__init__({})
        self.inside, self.gate = Event(), Event()
        self.gate.set()

    def read(self, keys, sink, deadline):
        self.inside.set()
        rooms = [sink.room(i, len(self.medium[key])) for i, key in enumerate(keys)]
        assert self.gate.wait(60)
        del rooms
        return super().read(keys, sink, deadline)

    def write(self, items, deadline):
        self.inside.set()
        assert self.gate.wait(60)
        return super().write(items, deadline)


def copy(engine):
    return engine.admin.copy(chosen(engine, PROMPT), "slow", "memory")


def move(engine):
    return engine.admin.move(chosen(engine, PROMPT), "slow", "memory")


def compress(engine):
    return engine.admin.compress(chosen(engine, PROMPT), "slow", ZSTD.name)


def rewrite(engine):
    return engine.admin.compress(chosen(engine, PROMPT), "slow", "raw")


@pytest.mark.parametrize("work", [copy, move, compress, rewrite], ids=lambda work: work.__name__)
def test_a_store_that_comes_late_has_its_blocks_for_itself(rig, work):
    """Which are its worker's: the call's go when it ends, and then to somebody else's chunk."""
    store = Stands()
    plans = [tier("memory", MemoryStore(ManualClock())), tier("slow", store)]
    options = {"serdes": {ZSTD.name: ZSTD}, "namespace": Namespace("wide", WIDE), "frame": FRAME}
    r = rig(plans, **options)
    r.engine.store(PROMPT, HeapKV(WIDE, len(PROMPT)))
    assert r.engine.flush()
    r.engine.clear(tiers=["memory"])
    if work is rewrite:
        assert compress(r.engine).done == 6
    store.inside.clear()
    if work in (compress, rewrite):  # the reads come through; what is written stands still
        store.read = lambda *call: ScanningStore.read(store, *call)
    store.gate.clear()
    moved = []
    thread = Thread(target=lambda: moved.append(work(r.engine)), daemon=True)
    thread.start()
    assert store.inside.wait(60)
    while thread.is_alive():
        r.clock.advance(100.0)
        thread.join(0.05)
    assert moved[0].done == 0
    owners = {owner.partition(" ")[0]: count for owner, count in r.pool.ledger().items()}
    assert owners.get("write" if work in (compress, rewrite) else "read"), owners
    store.gate.set()
    until(lambda: not r.pool.ledger())
