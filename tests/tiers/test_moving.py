"""Moving, copying, compressing, and tiers that come and go while the engine runs."""

import random
from threading import Event, Thread

import pytest

from dict_store import ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.engine.engine import Deadlines
from hexkv.core.io.rules import LaneRules
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.tiers.rules import Writes
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import (
    PAGE,
    ConfigError,
    CounterName,
    DType,
    Failed,
    InvalidRequest,
    KVLayout,
    Namespace,
    StoreUnreachable,
    frame_bytes,
)
from rigging import ALL, CHUNK, FRAME, LAYOUT, attach, chosen, tier

PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK)
FULL = 6 * CHUNK
ZSTD = ZstdSerde()
WIDE = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=256)
WIDE_FRAME = frame_bytes(WIDE.chunk_bytes(CHUNK))
SQUEEZING = {
    "serdes": {ZSTD.name: ZSTD},
    "namespace": Namespace("wide", WIDE),
    "frame": WIDE_FRAME,
}
ZEROS = HeapKV(WIDE, len(PROMPT))  # worth compressing


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def served(r, tokens=PROMPT):
    """Which tiers served how much of the prompt; its KV must be right."""
    target = HeapKV(LAYOUT, len(tokens))
    got = r.engine.retrieve(tokens, target)
    assert target.agrees(computed(tokens), got.hit_tokens)
    return got.tiers


def frames_in(path):
    """The files of a disk store's frames, and none of its own books."""
    return [f for f in path.rglob("[!.]*") if f.is_file() and f.stat().st_size >= PAGE]


def memory(budget=1 << 30, **rules):
    return tier("memory", MemoryStore(ManualClock()), budget, **rules)


def test_moving_a_prompt_to_another_tier_and_back(rig, tmp_path):
    r = rig([memory(promotes=False), tier("disk", DiskStore(tmp_path), writes=Writes.NONE)])
    r.engine.store(PROMPT, computed())
    part = PROMPT[: 4 * CHUNK]
    assert r.engine.admin.move(chosen(r.engine, part), "memory", "disk").done == 4
    assert served(r) == {"disk": 4 * CHUNK, "memory": 2 * CHUNK}
    assert r.engine.admin.move(chosen(r.engine, part), "disk", "memory").done == 4
    assert served(r) == {"memory": FULL}
    assert frames_in(tmp_path) == []
    assert r.at_rest()


def test_copying_a_whole_tier_leaves_the_source_as_it_is(rig, tmp_path):
    r = rig([memory(), tier("disk", DiskStore(tmp_path), writes=Writes.NONE)])
    r.engine.store(PROMPT, computed())
    assert r.engine.admin.copy(ALL, "memory", "disk").done == 6
    r.engine.clear(tiers=["memory"])
    assert served(r) == {"disk": FULL}


def test_what_the_target_does_not_take_stays_where_it_was(rig):
    class Refuses(ScanningStore):
        def write(self, items, deadline):
            return [Failed(StoreUnreachable("no"))] * len(items)

    r = rig([memory(), tier("other", Refuses({}), writes=Writes.NONE)])
    r.engine.store(PROMPT, computed())
    moved = r.engine.admin.move(ALL, "memory", "other")
    assert (moved.done, moved.failed) == (0, 6)
    assert served(r) == {"memory": FULL}


def test_absent_chunks_and_unknown_names_are_told(rig):
    r = rig([memory(), tier("other", ScanningStore({}))])
    assert r.engine.admin.move(chosen(r.engine, PROMPT), "memory", "other").absent == 6
    with pytest.raises(InvalidRequest, match="no tier 'tape'"):
        r.engine.admin.move(chosen(r.engine, PROMPT), "memory", "tape")
    with pytest.raises(InvalidRequest, match="no serde 'gzip'"):
        r.engine.admin.compress(chosen(r.engine, PROMPT), "memory", "gzip")


@each("where", ["memory", "disk"])
def test_compressed_chunks_are_retrieved_like_any_other(rig, tmp_path_factory, where):
    tmp_path = tmp_path_factory.mktemp("case")
    tiers = [memory()] if where == "memory" else [tier("disk", DiskStore(tmp_path))]
    r = rig(tiers, **SQUEEZING)
    r.engine.store(PROMPT, ZEROS)
    before = r.engine.health().tiers[0].used_bytes
    moved = r.engine.admin.compress(chosen(r.engine, PROMPT), where, ZSTD.name)
    after = r.engine.health().tiers[0].used_bytes
    assert (moved.done, moved.saved_bytes) == (6, before - after)
    assert after < before
    target = HeapKV(WIDE, len(PROMPT)).compute(PROMPT)
    assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(ZEROS, FULL)
    back = r.engine.admin.compress(ALL, where, "raw")
    assert (back.done, back.saved_bytes) == (6, after - before)
    assert r.engine.health().tiers[0].used_bytes == before
    assert r.engine.retrieve(PROMPT, target.compute(PROMPT)).hit_tokens == FULL
    assert target.agrees(ZEROS, FULL)
    assert r.at_rest()


def test_a_tier_may_compress_whatever_it_is_given(rig, tmp_path):
    r = rig([tier("disk", DiskStore(tmp_path), serdes=(ZSTD.name,))], **SQUEEZING)
    r.engine.store(PROMPT, ZEROS)
    used = r.engine.health().tiers[0].used_bytes
    r.engine.close()
    frames = [f.stat().st_size for f in frames_in(tmp_path)]
    assert used == sum(frames)
    assert max(frames) < WIDE_FRAME
    again = rig([tier("disk", DiskStore(tmp_path))], **SQUEEZING)
    target = HeapKV(WIDE, len(PROMPT)).compute(PROMPT)
    assert again.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(ZEROS, FULL)


def test_a_chunk_of_an_unknown_serde_is_a_miss(rig, tmp_path):
    r = rig([tier("disk", DiskStore(tmp_path), serdes=(ZSTD.name,))], **SQUEEZING)
    r.engine.store(PROMPT, ZEROS)
    r.engine.close()
    again = rig([tier("disk", DiskStore(tmp_path))], **{**SQUEEZING, "serdes": {}})
    target = HeapKV(WIDE, len(PROMPT)).compute(PROMPT)
    got = again.engine.retrieve(PROMPT, target)
    assert got.misses["unknown serde"] == 1
    assert target.agrees(HeapKV(WIDE, len(PROMPT)).compute(PROMPT), FULL)


def test_at_every_moment_of_a_move_each_chunk_is_readable(rig):
    r = rig([memory(promotes=False), tier("other", ScanningStore({}), writes=Writes.NONE)])
    r.engine.store(PROMPT, computed())
    stop, short = Event(), []

    def read():
        while not stop.is_set():
            if r.engine.lookup(PROMPT).hit_tokens != FULL:
                short.append("lookup")

    reader = Thread(target=read)
    reader.start()
    for _ in range(20):
        assert r.engine.admin.move(ALL, "memory", "other").done == 6
        assert r.engine.admin.move(ALL, "other", "memory").done == 6
    stop.set()
    reader.join(60)
    assert not reader.is_alive()
    assert not short


def test_what_memory_evicts_goes_to_the_tier_that_takes_it(rig, tmp_path):
    below = tier("disk", DiskStore(tmp_path), writes=Writes.EVICTED, promotes=False)
    r = rig([memory(4 * FRAME, promotes=False), below])
    r.engine.store(PROMPT[: 3 * CHUNK], computed(PROMPT[: 3 * CHUNK]))
    r.engine.flush()
    assert r.engine.health().tiers[1].chunks == 0
    other = PROMPT[10:][: 4 * CHUNK]
    r.engine.store(other, computed(other))
    r.engine.flush()
    assert r.engine.health().tiers[1].chunks == 3
    assert served(r, PROMPT[: 3 * CHUNK]) == {"disk": 3 * CHUNK}


def test_a_tier_is_attached_and_detached_while_the_engine_runs(rig, tmp_path):
    first = rig([tier("disk", DiskStore(tmp_path))])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    r = rig([memory()])
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    attach(r.engine, tier("disk", DiskStore(tmp_path)))
    assert served(r) == {"disk": FULL}
    with pytest.raises(ConfigError, match="already"):
        attach(r.engine, memory())
    assert r.engine.admin.detach("disk")
    assert served(r) == {"memory": FULL}
    DiskStore(tmp_path).close()  # its lock was given back
    with pytest.raises(InvalidRequest, match="no tier 'disk'"):
        r.engine.admin.detach("disk")


def test_detaching_drains_what_is_queued(rig):
    gate = Event()

    class Slow(ScanningStore):
        def write(self, items, deadline):
            assert gate.wait(30)
            return super().write(items, deadline)

    store = Slow({})
    r = rig([tier("slow", store), memory()])
    report = r.engine.store(PROMPT, computed(), wait=False)
    assert report.tiers == {"memory": FULL}
    gate.set()
    assert r.engine.admin.detach("slow")
    assert len(store.medium) == 6


def test_several_tiers_of_one_kind_and_any_order(rig, tmp_path):
    r = rig(
        [
            tier("near", DiskStore(tmp_path / "a"), budget=2 * FRAME),
            memory(),
            tier("far", DiskStore(tmp_path / "b")),
        ]
    )
    r.engine.store(PROMPT, computed())
    assert served(r) == {"near": 2 * CHUNK, "memory": 4 * CHUNK}


def test_rules_change_while_the_engine_runs(rig, tmp_path):
    r = rig([memory(), tier("disk", DiskStore(tmp_path))])
    r.engine.store(PROMPT[: 2 * CHUNK], computed(PROMPT[: 2 * CHUNK]))
    r.engine.admin.rules("memory", reads=False, writes=Writes.NONE, promotes=False)
    r.engine.store(PROMPT, computed())
    assert served(r) == {"disk": FULL}
    assert r.engine.health().tiers[0].chunks == 2
    r.engine.admin.rules("memory", reads=True)
    assert served(r) == {"memory": 2 * CHUNK, "disk": 4 * CHUNK}
    with pytest.raises(InvalidRequest, match="no tier 'tape'"):
        r.engine.admin.rules("tape", reads=True)


def test_damage_that_a_move_meets_is_counted_and_set_aside(rig, tmp_path):
    r = rig(
        [tier("disk", DiskStore(tmp_path)), tier("other", ScanningStore({}), writes=Writes.NONE)]
    )
    r.engine.store(PROMPT, computed())
    broken = min(frames_in(tmp_path))
    broken.write_bytes(bytes(FRAME))
    moved = r.engine.admin.move(ALL, "disk", "other")
    assert (moved.done, moved.absent) == (5, 1)
    assert r.telemetry.total(CounterName.CORRUPT) == 1
    assert r.engine.health().tiers[0].chunks == 0
    assert r.at_rest()


def near_and_far(path):
    near, far = DiskStore(path / "near"), DiskStore(path / "far")
    return [tier("near", near, promotes=False), tier("far", far, writes=Writes.NONE)]


@each("slots", [1, 3])
def test_a_move_of_more_chunks_than_the_pool_has_blocks_goes_through_in_pieces(
    rig, tmp_path_factory, slots
):
    tmp_path = tmp_path_factory.mktemp("case")
    r = rig(near_and_far(tmp_path), slots=slots)
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()  # a queue this small takes a batch only when no scan is in it
    moved = r.engine.admin.move(ALL, "near", "far")
    assert (moved.done, moved.absent, moved.failed) == (6, 0, 0)
    assert served(r) == {"far": FULL}
    assert r.at_rest()


def test_moves_at_once_never_wait_for_blocks_that_they_hold_themselves(rig, tmp_path):
    long = Deadlines(lookup=600.0, retrieve=600.0, store=600.0)
    r = rig(near_and_far(tmp_path), slots=4, clock=SystemClock(), deadlines=long)
    r.engine.store(PROMPT, computed())

    def work(there, back):
        for _ in range(10):
            r.engine.admin.copy(ALL, there, back)

    ways = [("near", "far"), ("far", "near")] * 3
    threads = [Thread(target=work, args=way, daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)  # less than the deadline, which is what a deadlock would cost
    assert not any(thread.is_alive() for thread in threads)
    assert served(r) == {"near": FULL}


def test_what_there_was_no_memory_to_change_has_failed_and_not_been_done(rig, tmp_path):
    r = rig([tier("disk", DiskStore(tmp_path))], slots=1, **SQUEEZING)
    r.engine.store(PROMPT, ZEROS)
    moved = r.engine.admin.compress(chosen(r.engine, PROMPT), "disk", ZSTD.name)
    assert (moved.done, moved.failed, moved.saved_bytes) == (0, 6, 0)
    assert r.at_rest()


class Failing(ZstdSerde):
    """A serde that cannot encode."""

    def encode(self, chunk, layout, tokens, into):
        raise RuntimeError("out of luck")


def test_a_serde_that_fails_costs_no_chunk_and_no_worker(rig, tmp_path):
    broken = SQUEEZING | {"serdes": {ZSTD.name: Failing()}}
    lane = LaneRules(workers=1)
    r = rig([tier("disk", DiskStore(tmp_path), serdes=(ZSTD.name,), lane=lane)], **broken)
    for part in (PROMPT[: 2 * CHUNK], PROMPT):
        assert r.engine.store(part, HeapKV(WIDE, len(part))).dropped_tokens == 0
    moved = r.engine.admin.compress(chosen(r.engine, PROMPT), "disk", ZSTD.name)
    assert (moved.done, moved.failed) == (0, 6)
    target = HeapKV(WIDE, len(PROMPT)).compute(PROMPT)
    assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(ZEROS, FULL)


@each("what", ["clear", "compress"])
def test_what_happens_to_a_chunk_while_it_is_replaced_never_falsifies_the_count(rig, what):
    meanwhile = []

    class Interrupted(MemoryStore):
        def put_lease(self, keys, leases):
            while meanwhile:
                meanwhile.pop()()
            super().put_lease(keys, leases)

    store = Interrupted(ManualClock())
    r = rig([tier("memory", store)], **SQUEEZING)
    r.engine.store(PROMPT, ZEROS)
    if what == "clear":
        meanwhile.append(lambda: r.engine.clear(PROMPT))
    else:
        meanwhile.append(lambda: r.engine.admin.compress(chosen(r.engine, PROMPT), "memory", "raw"))
        meanwhile.append(
            lambda: r.engine.admin.compress(chosen(r.engine, PROMPT), "memory", ZSTD.name)
        )
    r.engine.admin.compress(chosen(r.engine, PROMPT), "memory", ZSTD.name)
    assert r.engine.health().tiers[0].used_bytes == sum(entry.size for entry in store.scan())
    assert r.at_rest()


def test_memory_counts_what_a_chunk_takes_of_the_pool(rig):
    r = rig([memory()], **SQUEEZING, chunker=PrefixChunker(CHUNK, tail=1))
    tail = PROMPT[: CHUNK * 3 // 4]  # more than half a block, so it takes a whole one
    r.engine.store(tail, HeapKV(WIDE, len(tail)))
    health = r.engine.health()
    assert health.tiers[0].used_bytes == health.pool_held_bytes == WIDE_FRAME
    assert r.engine.admin.compress(chosen(r.engine, tail), "memory", ZSTD.name).saved_bytes > 0
    health = r.engine.health()
    assert health.tiers[0].used_bytes == health.pool_held_bytes < WIDE_FRAME
