"""What the engine promises over real stores: memory blocks and a disk directory."""

import random
from array import array
from threading import Event, Thread

import numpy as np
import pytest
import torch

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.memory import MemoryStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.heap_kv import HeapKV
from hexkv.core.chunking import PrefixChunker
from hexkv.core.engine import Deadlines
from hexkv.core.registry import EngineRegistry
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    ConfigError,
    Counter,
    DType,
    EngineClosed,
    Failed,
    Hit,
    InvalidRequest,
    InvalidTokens,
    KVLayout,
    LayoutMismatch,
    Miss,
    Namespace,
    StoreUnreachable,
    TimedOut,
)
from rigging import CHUNK, FRAME, LAYOUT, tier

PROMPT = random.Random(1).choices(range(50_000), k=10 * CHUNK + 5)
FULL = 10 * CHUNK


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def empty(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens))


def memory():
    return tier("memory", MemoryStore(ManualClock()))


def disk(path, **options):
    return tier("disk", DiskStore(path), **options)


def files_in(path):
    return sorted(f for f in path.rglob("*") if f.is_file() and f.stat().st_size >= FRAME)


def test_gives_back_what_was_stored(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    report = r.engine.store(PROMPT, computed())
    assert (report.stored_tokens, report.dropped_tokens) == (FULL, 0)
    assert report.tiers == {"memory": FULL, "disk": FULL}
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert got.hit_tokens == FULL
    assert got.tiers == {"memory": FULL}
    assert target.agrees(computed(), FULL)
    assert r.at_rest()


def test_a_new_engine_finds_what_an_old_one_left_on_disk(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    second = rig([memory(), disk(tmp_path)])
    assert second.engine.lookup(PROMPT).tiers == {"disk": FULL}
    target = empty()
    assert second.engine.retrieve(PROMPT, target).tiers == {"disk": FULL}
    assert target.agrees(computed(), FULL)
    assert second.engine.retrieve(PROMPT, empty()).tiers == {"memory": FULL}


def test_storing_what_is_there_copies_nothing(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    before = [(f, f.stat().st_mtime_ns) for f in files_in(tmp_path)]

    class Untouchable(HeapKV):
        def gather(self, spans, layers=None):
            raise AssertionError("copied")

    report = r.engine.store(PROMPT, Untouchable(LAYOUT, len(PROMPT)))
    assert (report.stored_tokens, report.present_tokens) == (0, FULL)
    assert [(f, f.stat().st_mtime_ns) for f in files_in(tmp_path)] == before


def test_only_the_missing_part_of_a_longer_prompt_is_stored(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[: 4 * CHUNK], computed(PROMPT[: 4 * CHUNK]))
    report = r.engine.store(PROMPT, computed())
    assert (report.present_tokens, report.stored_tokens) == (4 * CHUNK, 6 * CHUNK)


def test_a_shared_prefix_is_shared_and_no_more(rig):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    other = PROMPT[: 3 * CHUNK + 2] + [1] * 100
    target = empty(other)
    assert r.engine.retrieve(other, target).hit_tokens == 3 * CHUNK
    assert target.agrees(computed(other), 3 * CHUNK)


def test_a_chunk_on_disk_between_chunks_in_memory_is_a_hit(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    index = r.tiers["memory"].index
    keys = index.keys()
    gone = index.discard([keys[4]])
    r.tiers["memory"].store.delete(gone, None)
    index.deleted(gone)
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert got.tiers == {"memory": 9 * CHUNK, "disk": CHUNK}
    assert target.agrees(computed(), FULL)


def test_an_unfull_tail_is_kept_where_asked_for(rig):
    r = rig([memory()], chunker=PrefixChunker(CHUNK, keep_tail=True))
    r.engine.store(PROMPT, computed())
    target = empty()
    assert r.engine.retrieve(PROMPT, target).hit_tokens == len(PROMPT)
    assert target.agrees(computed(), len(PROMPT))


@pytest.mark.parametrize("as_mask", [False, True])
def test_skipped_tokens_are_neither_loaded_nor_stored(rig, as_mask):
    r = rig([memory()])
    skip = 3 * CHUNK

    def how():
        return (
            {"mask": [False] * skip + [True] * (len(PROMPT) - skip)} if as_mask else {"skip": skip}
        )

    assert r.engine.store(PROMPT, computed(), **how()).stored_tokens == 7 * CHUNK
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    r.engine.store(PROMPT, computed())
    target = empty()
    got = r.engine.retrieve(PROMPT, target, **how())
    assert (got.hit_tokens, got.loaded_tokens) == (FULL, 7 * CHUNK)
    assert target.agrees(computed(), FULL, skip)
    assert target.agrees(empty(), skip)


@pytest.mark.parametrize(
    "spell",
    [tuple, lambda t: array("I", t), lambda t: np.array(t), lambda t: torch.tensor(t)],
    ids=["tuple", "array", "numpy", "torch"],
)
def test_tokens_have_many_spellings_and_one_name(rig, spell):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    assert r.engine.lookup(spell(PROMPT)).hit_tokens == FULL


@pytest.mark.parametrize("tokens", [[], [7], PROMPT[: CHUNK - 1]])
def test_prompts_shorter_than_a_chunk_store_and_hit_nothing(rig, tokens):
    r = rig([memory()])
    assert r.engine.store(tokens, computed(tokens)).stored_tokens == 0
    assert r.engine.lookup(tokens).hit_tokens == 0
    assert r.engine.retrieve(tokens, empty(tokens)).hit_tokens == 0


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], "text", None, 5, [[1, 2]], [None]])
def test_wrong_tokens_are_refused(rig, tokens):
    r = rig([memory()])
    with pytest.raises(InvalidTokens):
        r.engine.lookup(tokens)
    with pytest.raises(InvalidTokens):
        r.engine.retrieve(tokens, empty([1]))
    with pytest.raises(InvalidTokens):
        r.engine.store(tokens, empty([1]))
    assert r.at_rest()


def test_a_window_of_the_wrong_length_is_refused(rig):
    r = rig([memory()])
    for call in (r.engine.store, r.engine.retrieve):
        with pytest.raises(InvalidRequest, match="addresses 164 positions for 165 tokens"):
            call(PROMPT, HeapKV(LAYOUT, len(PROMPT) - 1))
        with pytest.raises(InvalidRequest, match="not a window"):
            call(PROMPT, object())


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([True] * 3, "3 values for 165 tokens"),
        ([True] * 10 + [False] * 155, "False for the tokens to skip"),
        ([2] * 165, "False for the tokens to skip"),
        (["x"] * 165, "one boolean per token"),
    ],
)
def test_wrong_masks_are_refused(rig, mask, says):
    r = rig([memory()])
    with pytest.raises(InvalidRequest, match=says):
        r.engine.retrieve(PROMPT, empty(), mask=mask)


@pytest.mark.parametrize("skip", [-1, len(PROMPT) + 1])
def test_skipping_outside_the_prompt_is_refused(rig, skip):
    with pytest.raises(InvalidRequest, match="skip must be"):
        rig([memory()]).engine.store(PROMPT, computed(), skip=skip)


def test_masks_may_be_arrays_and_tensors(rig):
    r = rig([memory()])
    mask = np.arange(len(PROMPT)) >= 2 * CHUNK
    assert r.engine.store(PROMPT, computed(), mask=mask).stored_tokens == 8 * CHUNK
    assert r.engine.store(PROMPT, computed(), mask=torch.tensor(mask)).present_tokens == 8 * CHUNK


def test_a_layout_that_does_not_match_is_refused(rig):
    r = rig([memory()])
    other = KVLayout.attention(DType.FLOAT32, layers=3, heads=2, key_width=8, value_width=4)
    with pytest.raises(LayoutMismatch, match="float32"):
        r.engine.store(PROMPT, HeapKV(other, len(PROMPT)))
    with pytest.raises(LayoutMismatch, match="larger than the pool's blocks"):
        r.engine.lookup(PROMPT, namespace=Namespace("big", KVLayout.latent(
            DType.FLOAT32, layers=64, latent_width=512, rope_width=64)))  # fmt: skip


def test_namespaces_do_not_mix(rig):
    r = rig([memory()])
    tenant = Namespace("toy", LAYOUT, revision="1", salt="tenant-a")
    r.engine.store(PROMPT, computed(), namespace=tenant)
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    assert r.engine.lookup(PROMPT, namespace=tenant).hit_tokens == FULL


def test_a_chunk_larger_than_a_block_is_refused_when_the_engine_is_built(rig):
    with pytest.raises(ConfigError, match="does not fit a block"):
        rig([memory()], chunker=PrefixChunker(4 * CHUNK))


def test_damaged_frames_are_counted_misses_and_set_aside(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    flipped, short, zeroed = files_in(tmp_path)[:3]
    data = bytearray(flipped.read_bytes())
    data[-1000] ^= 4
    flipped.write_bytes(data)
    short.write_bytes(short.read_bytes()[: FRAME // 2])
    zeroed.write_bytes(bytes(FRAME))
    r = rig([disk(tmp_path)])
    total = 0
    for _ in range(4):
        target = empty()
        got = r.engine.retrieve(PROMPT, target)
        assert target.agrees(computed(), got.hit_tokens)
        total += got.misses.get("corrupt", 0)
        r.engine.store(PROMPT, computed(), skip=got.hit_tokens)
    assert r.engine.retrieve(PROMPT, empty()).hit_tokens == FULL
    assert total >= 1
    assert r.telemetry.total(Counter.CORRUPT) == 3
    assert r.at_rest()


def test_a_frame_under_another_key_is_never_used(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    files = files_in(tmp_path)
    contents = [f.read_bytes() for f in files]
    for file, content in zip(files, contents[1:] + contents[:1], strict=True):
        file.write_bytes(content)
    target = empty()
    assert rig([disk(tmp_path)]).engine.retrieve(PROMPT, target).hit_tokens == 0
    assert target.agrees(empty(), FULL)


def test_a_request_longer_than_the_pool_goes_through_in_pieces(rig, tmp_path):
    r = rig([disk(tmp_path)], slots=2)
    assert r.engine.store(PROMPT, computed()).stored_tokens == FULL
    target = empty()
    assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)


def test_a_memory_budget_keeps_the_beginning_of_a_long_prompt(rig, tmp_path):
    r = rig([tier("memory", MemoryStore(ManualClock()), 3 * FRAME), disk(tmp_path)], slots=8)
    report = r.engine.store(PROMPT, computed())
    assert report.tiers == {"memory": 3 * CHUNK, "disk": FULL}
    assert r.engine.lookup(PROMPT).tiers == {"memory": 3 * CHUNK, "disk": 7 * CHUNK}


def test_a_full_pool_makes_the_memory_tier_evict(rig):
    r = rig([memory()], slots=6)
    for start in range(5):
        prompt = PROMPT[start : start + 4 * CHUNK]
        r.engine.store(prompt, computed(prompt))
        target = empty(prompt)
        got = r.engine.retrieve(prompt, target)
        assert got.hit_tokens >= CHUNK
        assert target.agrees(computed(prompt), got.hit_tokens)
    assert r.telemetry.total(Counter.EVICTED) > 0


def test_budgets_hold_and_survive_a_restart(rig, tmp_path):
    r = rig([disk(tmp_path, budget=4 * FRAME)])
    for start in range(6):
        prompt = PROMPT[start : start + 3 * CHUNK]
        r.engine.store(prompt, computed(prompt))
        assert sum(f.stat().st_size for f in files_in(tmp_path)) <= 4 * FRAME
    r.engine.close()
    again = rig([disk(tmp_path, budget=2 * FRAME)])
    assert again.engine.flush()
    assert sum(f.stat().st_size for f in files_in(tmp_path)) <= 2 * FRAME
    (health,) = again.engine.health().tiers
    assert health.used_bytes == sum(f.stat().st_size for f in files_in(tmp_path))


def test_pinned_chunks_outlive_pressure_until_unpinned(rig):
    r = rig([tier("memory", MemoryStore(ManualClock()), 4 * FRAME)])
    kept = PROMPT[: 3 * CHUNK]
    r.engine.store(kept, computed(kept))
    assert r.engine.pin(kept, "request-1") == 3 * CHUNK
    assert r.engine.health().pins == {"request-1": 3}
    other = PROMPT[50:]
    r.engine.store(other, computed(other))
    assert r.engine.lookup(kept).hit_tokens == 3 * CHUNK
    assert r.engine.unpin("request-1") == 3
    assert r.engine.unpin("request-1") == 0
    r.engine.store(other, computed(other))
    assert r.engine.lookup(kept).hit_tokens < 3 * CHUNK


def test_a_frozen_engine_serves_and_stores_nothing(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[:32], computed(PROMPT[:32]))
    r.engine.freeze()
    report = r.engine.store(PROMPT, computed())
    assert report.frozen
    assert report.stored_tokens == 0
    assert r.engine.retrieve(PROMPT, empty()).hit_tokens == 32
    r.engine.freeze(False)
    assert r.engine.store(PROMPT, computed()).stored_tokens == FULL - 32


def test_clearing_by_tokens_by_tier_and_whole(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    assert r.engine.clear(PROMPT[: 2 * CHUNK], tiers=["memory"]) == 2
    assert r.engine.lookup(PROMPT).tiers == {"memory": 8 * CHUNK, "disk": 2 * CHUNK}
    assert r.engine.clear(PROMPT[: 2 * CHUNK]) == 2
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    assert r.engine.clear() == 8
    assert files_in(tmp_path) == []
    with pytest.raises(InvalidRequest, match="no tier 'tape'; there are memory, disk"):
        r.engine.clear(tiers=["tape"])


class Broken:
    """A store whose every call ends the same way."""

    def __init__(self, how):
        self.how = how

    def contains(self, keys, deadline):
        return [True] * len(keys)

    def read(self, keys, sink, deadline):
        return self.how(keys, sink)

    def write(self, items, deadline):
        return self.how([item.key for item in items], None)

    def delete(self, keys, deadline):
        return self.how(keys, None)

    def close(self):
        raise StoreUnreachable("gone")


def raises(error):
    def how(keys, sink):
        raise error

    return how


def garbage(size):
    """Says that a frame arrived, and leaves in the buffer what was there."""

    def how(keys, sink):
        return [Hit(size) if sink and sink.room(i, size) else Miss() for i in range(len(keys))]

    return how


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(raises(StoreUnreachable("gone")), id="unreachable"),
        pytest.param(raises(RuntimeError("bug")), id="bug"),
        pytest.param(raises(MemoryError()), id="memory"),
        pytest.param(lambda keys, sink: [], id="short answer"),
        pytest.param(lambda keys, sink: [Failed(OSError())] * len(keys), id="failed"),
        pytest.param(lambda keys, sink: [TimedOut()] * len(keys), id="late"),
        pytest.param(lambda keys, sink: [Miss()] * len(keys), id="miss"),
        pytest.param(lambda keys, sink: [Hit(FRAME)] * len(keys), id="lie"),
        pytest.param(garbage(FRAME), id="garbage"),
        pytest.param(garbage(1 << 40), id="huge"),
        pytest.param(garbage(100), id="tiny"),
    ],
)
def test_whatever_a_tier_does_the_engine_answers_and_the_next_tier_serves(rig, tmp_path, how):
    broken = tier("broken", Broken(how))
    broken.index = None
    r = rig([broken, disk(tmp_path)])
    lonely = rig([tier("broken", Broken(how))])
    r.engine.store(PROMPT, computed())
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert target.agrees(computed(), got.hit_tokens)
    assert lonely.engine.retrieve(PROMPT, empty()).hit_tokens == 0
    assert r.at_rest()
    assert lonely.at_rest()


def test_a_damaged_chunk_is_served_by_the_next_tier(rig, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    r = rig([tier("a", DiskStore(a)), tier("b", DiskStore(b))])
    r.engine.store(PROMPT, computed())
    for file in files_in(a):
        file.write_bytes(bytes(FRAME))
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert got.tiers == {"b": FULL}
    assert target.agrees(computed(), FULL)
    assert r.engine.flush()
    assert r.engine.retrieve(PROMPT, empty()).tiers == {"a": FULL}  # promoted again


class BadDevice(HeapKV):
    def scatter(self, spans, layers=None):
        raise RuntimeError("device lost")

    gather = scatter


def test_a_failing_device_shortens_the_hit(rig, caplog):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    got = r.engine.retrieve(PROMPT, BadDevice(LAYOUT, len(PROMPT)))
    assert (got.hit_tokens, got.misses) == (0, {"device": 1, "behind a miss": 9})
    assert "device lost" in caplog.text
    assert r.at_rest()


def test_memory_of_a_late_copy_is_not_reused_before_it_ends(rig):
    r = rig([memory()])
    ended = Event()

    class Late(HeapKV):
        def gather(self, spans, layers=None):
            class Transfer:
                def wait(self, deadline):
                    return ended.is_set()

            return Transfer()

    report = r.engine.store(PROMPT, Late(LAYOUT, len(PROMPT)))
    assert report.dropped_tokens == FULL
    assert r.engine.health().leases["late copy"] > 0
    ended.set()
    r.engine.lookup(PROMPT)
    assert r.at_rest()


def test_hits_and_misses_add_up_to_lookups(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[: 4 * CHUNK], computed(PROMPT[: 4 * CHUNK]))
    for tokens in (PROMPT, PROMPT[: 2 * CHUNK], PROMPT[3:], []):
        r.engine.retrieve(tokens, empty(tokens))
    counted = r.telemetry.total
    assert counted(Counter.LOOKUPS) == counted(Counter.HITS) + counted(Counter.MISSES) == 22
    assert counted(Counter.HITS) == 6


def test_a_closed_engine_refuses_calls_and_closes_twice(rig):
    r = rig([memory()])
    with r.engine as engine:
        engine.store(PROMPT, computed())
    for call in (
        lambda: engine.lookup(PROMPT),
        lambda: engine.store(PROMPT, computed()),
        lambda: engine.retrieve(PROMPT, empty()),
        lambda: engine.clear(),
    ):
        with pytest.raises(EngineClosed):
            call()
    engine.close()
    assert engine.health().state == "closed"
    assert r.pool.ledger() == {}


def test_the_registry_keeps_one_engine_per_instance(rig):
    registry = EngineRegistry()
    first = registry.get_or_create("i", "conf", lambda: rig([memory()]).engine)
    assert registry.get_or_create("i", "conf", lambda: pytest.fail("built twice")) is first
    with pytest.raises(ConfigError, match="another configuration"):
        registry.get_or_create("i", "other", lambda: pytest.fail("built twice"))
    assert registry.destroy("i")
    assert not registry.destroy("i")
    assert first.health().state == "closed"
    assert registry.get_or_create("i", "other", lambda: rig([memory()]).engine) is not first


def test_tiers_are_told_apart_in_events(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT[:32], computed(PROMPT[:32]))
    r.engine.clear(tiers=["memory"])
    told = [(event.change.value, event.tier, len(event.keys)) for event in r.events.events]
    assert told == [("stored", "memory", 2), ("stored", "disk", 2), ("removed", "memory", 2)]


@pytest.mark.parametrize("seed", range(10))
def test_threads_never_see_wrong_kv(rig, seed):
    rng = random.Random(seed)
    r = rig([tier("memory", MemoryStore(ManualClock()), 6 * FRAME)], slots=16)
    prompts = [PROMPT[: rng.randrange(165)] + [i] * rng.randrange(80) for i in range(6)]
    wrong = []

    def work(order):
        for prompt in order:
            target = empty(prompt)
            got = r.engine.retrieve(prompt, target)
            if not target.agrees(computed(prompt), got.hit_tokens):
                wrong.append(prompt)
            r.engine.store(prompt, computed(prompt), skip=got.hit_tokens)

    threads = [Thread(target=work, args=(rng.sample(prompts, 6),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert r.at_rest()


@pytest.mark.parametrize("hangs", ["read", "write", "close"])
def test_closing_always_returns_whatever_hangs(rig, tmp_path, hangs):
    stuck, free = Event(), Event()

    class Hanging(DiskStore):
        def _hang(self):
            stuck.set()
            assert free.wait(60)

        def read(self, keys, sink, deadline):
            if hangs == "read":
                self._hang()
            return super().read(keys, sink, deadline)

        def write(self, items, deadline):
            if hangs == "write":
                self._hang()
            return super().write(items, deadline)

        def close(self):
            if hangs == "close":
                self._hang()
            super().close()

    clock = SystemClock()
    soon = Deadlines(retrieve=0.2, store=0.2, close=0.2)
    r = rig([tier("disk", Hanging(tmp_path))], clock=clock, deadlines=soon)
    r.engine.store(PROMPT, computed())
    r.engine.retrieve(PROMPT, empty())
    r.engine.close()
    assert stuck.is_set()
    assert r.engine.health().state == "closed"
    assert r.engine.health().leases or hangs == "close"
    free.set()
    settled = Event()
    while r.pool.ledger() and not settled.wait(0.01):
        pass
