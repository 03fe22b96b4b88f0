"""A store that does I/O is called by workers of its own lanes only, so it delays nobody else."""

import random
from threading import Event, Thread, current_thread

import pytest

from dict_store import CapableStore, ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256
from hexkv.core.keys.prompts import ChunkHasher
from hexkv.core.policies import POLICIES
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.index.tenants import DividedIndex, Tenant
from hexkv.core.tiers.rules import TierRules
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import DType, KVLayout, Namespace, frame_bytes
from rigging import ALL, CHUNK, FRAME, LAYOUT, PATIENCE, attach, chosen, tier

PROMPT = random.Random(6).choices(range(50_000), k=6 * CHUNK)
OTHER = PROMPT[CHUNK:]
ZSTD = ZstdSerde()
RED = Namespace("toy", LAYOUT, revision="1", salt="red secret")
RED_LORA = Namespace("toy", LAYOUT, revision="1", salt="red secret", lora="painter")
TENANTS = (Tenant("red", "red secret"),)
WIDE = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=256)
WIDE_FRAME = frame_bytes(WIDE.chunk_bytes(CHUNK))
PLAIN = Namespace("wide", WIDE)
REDS = (
    Namespace("wide", WIDE, salt="red secret"),
    Namespace("wide", WIDE, salt="red secret", lora="painter"),
)
WRITING = ("write", "delete", "scan")
CALLS = ("contains", "read", "write", "delete", "scan", "quarantine", "read_range")


def kv(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def index(frames):
    return TierIndex(POLICIES["lru"](), frames * FRAME)


def divided(name, store, *, rest, red, **rules):
    return TierPlan(name, store, DividedIndex(index(rest), {"red": index(red)}), TierRules(**rules))


class Observed(DiskStore):
    """A store on disk that notes which thread asked what of it."""

    def __init__(self, root):
        super().__init__(root)
        self.asked = []

    shared = True


def _observed(name):
    def call(self, *args):
        self.asked.append((name, current_thread().name))
        return getattr(DiskStore, name)(self, *args)

    return call


for _name in CALLS:
    setattr(Observed, _name, _observed(_name))


def use(engine, rng):
    """Ask everything of an engine that reaches its tiers."""
    for namespace in (PLAIN, *reversed(REDS)):
        for tokens in (PROMPT, OTHER):
            window = HeapKV(WIDE, len(tokens))  # zeros, which are worth compressing
            engine.lookup(tokens, pin="somebody", namespace=namespace)
            engine.store(tokens, window, namespace=namespace, wait=rng.random() < 0.5)
            engine.prefetch("soon", tokens, namespace=namespace)
            engine.retrieve(tokens, window, namespace=namespace)
            short = OTHER[CHUNK:]
            with engine.store_layers(short, HeapKV(WIDE, len(short)), namespace=namespace) as put:
                for layer in range(WIDE.layers):
                    put.layer_done(layer)
                put.result()
            engine.unpin("somebody")
            engine.clear(tokens[: 2 * CHUNK], tiers=["memory"], namespace=namespace)
            with engine.retrieve_layers(tokens, window, namespace=namespace) as layers:
                for _ in layers:
                    pass
            engine.explain(tokens, namespace=namespace)
            engine.pin(tokens, "else", namespace=namespace)
            engine.unpin("else")
            engine.admin.copy(chosen(engine, tokens, namespace), "disk", "other")
            engine.admin.compress(chosen(engine, tokens, namespace), "disk", ZSTD.name)
            engine.store(tokens[1:], HeapKV(WIDE, len(tokens) - 1), namespace=namespace)
            engine.admin.compress(ALL, "disk", "raw")
            engine.admin.move(chosen(engine, tokens, namespace), "disk", "other")
            engine.admin.move(ALL, "other", "disk")
        engine._chunks.stack.pool.reclaim(3 * WIDE_FRAME)
        engine.clear(PROMPT, namespace=namespace)
    engine.flush()
    engine.clear()
    _read_layers_from_disk(engine)


def _read_layers_from_disk(engine):
    """What happens above only if a chunk has left memory and not the disk in time."""
    alone = PROMPT[:CHUNK]
    window = HeapKV(WIDE, CHUNK)
    engine.store(alone, window, namespace=PLAIN)
    engine.flush()
    engine.clear(alone, tiers=["memory"], namespace=PLAIN)
    with engine.retrieve_layers(alone, window, namespace=PLAIN) as layers:
        assert len(list(layers)) == WIDE.layers


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_asked_only_its_own_workers_call_a_store_that_does_io(rig, tmp_path, seed):
    rng = random.Random(seed)

    def share(name, store, rest, red):
        indexes = [TierIndex(POLICIES["lru"](), frames * WIDE_FRAME) for frames in (rest, red)]
        return TierPlan(name, store, DividedIndex(indexes[0], {"red": indexes[1]}))

    def build(quota):
        stores = {name: Observed(tmp_path / name) for name in ("disk", "other")}
        memory = tier("memory", MemoryStore(ManualClock()), budget=4 * WIDE_FRAME)
        tiers = [memory, *(share(name, s, 12 - quota, quota) for name, s in stores.items())]
        r = rig(tiers, serdes={ZSTD.name: ZSTD}, namespace=PLAIN, frame=WIDE_FRAME, tenants=TENANTS)
        return r.engine, stores

    engine, _ = build(quota=11)
    for tokens in (PROMPT, OTHER):
        engine.store(tokens, HeapKV(WIDE, len(tokens)), namespace=REDS[1])
    engine.close()
    engine, stores = build(quota=rng.randrange(1, 6))
    engine.flush()
    use(engine, rng)
    stores["late"] = Observed(tmp_path / "late")
    attach(engine, share("late", stores["late"], 3, 3))
    engine.store(PROMPT, HeapKV(WIDE, len(PROMPT)), namespace=REDS[0])
    engine.flush()
    engine.admin.detach("late")
    engine.close()
    for name, store in stores.items():
        assert store.asked
        for call, thread in store.asked:
            lane = f"hexkv {name}/write" if call in WRITING else f"hexkv {name}/"
            assert thread.startswith(lane), (call, thread)
    called = {call for call, _ in stores["disk"].asked}
    assert called == {"contains", "read", "read_range", "write", "delete", "scan"}


class Stubborn(ScanningStore):
    """A store whose delete hangs until it is released, and that never outgrows its limit."""

    def __init__(self, medium, limit):
        super().__init__(medium)
        self.limit = limit
        self.most = 0
        self.began, self.released = Event(), Event()
        self.released.set()

    def write(self, items, deadline):
        answers = super().write(items, deadline)
        self.most = max(self.most, sum(map(len, self.medium.values())))
        return answers

    def delete(self, keys, deadline):
        self.began.set()
        self.released.wait()
        return super().delete(keys, deadline)


def in_time(work):
    """What *work* gives, done by somebody else, so that one that hangs is a failure."""
    answers = []
    worker = Thread(target=lambda: answers.append(work()), daemon=True)
    worker.start()
    worker.join(PATIENCE)
    assert answers, "it hangs"
    return answers[0]


@pytest.fixture
def crowded(rig):
    """An engine whose tenant's LoRA has left more than the quota, and a delete that hangs."""
    medium = {}
    first = rig([tier("disk", ScanningStore(medium))])
    for start in range(0, 6 * CHUNK, CHUNK):
        tokens = PROMPT[start:] + PROMPT[:start]
        first.engine.store(tokens, kv(tokens), namespace=RED_LORA)
    first.engine.close()
    assert len(medium) == 36
    store = Stubborn(medium, 40 * FRAME)
    store.released.clear()
    r = rig([divided("disk", store, rest=35, red=5, retries=0)], tenants=TENANTS)
    assert r.engine.flush()
    yield r, store
    store.released.set()


def test_a_delete_that_hangs_at_a_tenants_first_call_holds_up_nobody(crowded):
    r, store = crowded
    assert in_time(lambda: r.engine.lookup(PROMPT, namespace=RED_LORA)).hit_tokens <= 5 * CHUNK
    assert store.began.wait(PATIENCE)
    assert in_time(lambda: r.engine.lookup(PROMPT)).hit_tokens == 0
    assert in_time(lambda: r.engine.lookup(PROMPT, namespace=RED)).hit_tokens == 0
    got = in_time(lambda: r.engine.retrieve(PROMPT, kv(), namespace=RED_LORA))
    assert got.hit_tokens <= 5 * CHUNK


def test_what_waits_to_be_deleted_counts_and_makes_room_when_it_is_gone(crowded):
    r, store = crowded
    disk = r.tiers["disk"].index
    r.engine.lookup(PROMPT, namespace=RED_LORA)
    assert store.began.wait(PATIENCE)
    assert disk.used == 36 * FRAME
    assert disk.used_by() == {"red": 36 * FRAME}
    kept = len(disk)
    assert kept == 5
    report = r.engine.store(PROMPT, kv(), namespace=RED)
    assert report.dropped_tokens == 6 * CHUNK
    assert len(disk) == kept, "nothing more goes for what could not be written all the same"
    assert r.engine.store(PROMPT, kv()).stored_tokens == 4 * CHUNK, "40 frames at most"
    store.released.set()
    assert r.engine.flush()
    assert disk.used == 9 * FRAME
    assert r.engine.store(PROMPT, kv(), namespace=RED).stored_tokens == 5 * CHUNK
    assert r.engine.store(PROMPT, kv()).stored_tokens == 2 * CHUNK
    assert store.most == 40 * FRAME
    assert sum(map(len, store.medium.values())) == disk.used == 11 * FRAME


def test_victims_that_a_lane_did_not_take_go_before_the_next_write(crowded):
    r, store = crowded
    lane = r.tiers["disk"].writing
    lane.breaker.failed(at_once=True)
    r.engine.lookup(PROMPT, namespace=RED_LORA)
    assert not store.began.is_set()
    assert r.tiers["disk"].index.used == 36 * FRAME
    store.released.set()
    lane.breaker.succeeded()
    assert r.engine.store(PROMPT, kv(), namespace=RED).stored_tokens == 5 * CHUNK
    assert len(store.medium) == 5


def test_many_victims_are_deleted_bit_by_bit_by_one_worker(rig):
    r = rig([tier("disk", CapableStore({}))])
    disk = r.tiers["disk"]
    sizes = []
    delete = disk.store.delete
    disk.store.delete = lambda keys, deadline: sizes.append(len(keys)) or delete(keys, deadline)
    keys = [bytes([n // 256, n % 256]) * 24 for n in range(2500)]
    disk.index.reserve(keys, [1] * len(keys))
    disk.index.commit(keys)
    r.engine._chunks.stack.writer.evict_soon(disk, disk.index.evict(2500))
    assert r.engine.flush()
    assert sizes == [1024, 1024, 452]
    assert disk.index.used == 0


def test_meeting_one_namespace_holds_up_no_other():
    hold, met = Event(), []

    def meet(namespace, prefix):
        met.append(namespace)
        if namespace.lora:
            hold.wait(PATIENCE)

    namer = ChunkHasher(PrefixChunker(CHUNK), SHA256, meet)
    slow = [Thread(target=lambda: namer.name(PROMPT, RED_LORA), daemon=True) for _ in range(2)]
    for thread in slow:
        thread.start()
    assert len(in_time(lambda: namer.name(PROMPT, RED)).keys) == 6
    assert all(thread.is_alive() for thread in slow)
    hold.set()
    for thread in slow:
        thread.join(PATIENCE)
    assert RED in met
    assert len(namer.keyers()) == 2
