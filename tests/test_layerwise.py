"""What retrieving and storing layer by layer promise: the same chunks, sooner, no less safely."""

import random
from dataclasses import replace
from threading import Event, Thread

import pytest
import torch

from dict_store import DictStore, ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.memory import MemoryStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.heap_kv import HeapKV
from hexkv.core.chunking import PrefixChunker
from hexkv.core.frames import PARTS, layer_parts, part_span
from hexkv.core.scheduler import LaneRules
from hexkv.core.tiers import Tier, TierRules
from hexkv.kernels.paged import PagedKV
from hexkv.ports import (
    PAGE,
    Counter,
    DType,
    EngineClosed,
    Failed,
    Hit,
    InvalidRequest,
    KVLayout,
    LayoutMismatch,
    Miss,
    Namespace,
    StoreError,
    StoreUnreachable,
    TimedOut,
    frame_bytes,
)
from rigging import CHUNK, LAYOUT, tier

PROMPT = random.Random(3).choices(range(50_000), k=10 * CHUNK + 5)
FULL = 10 * CHUNK
LAYERS = list(range(LAYOUT.layers))
SPANS = [part_span(layer_parts(LAYOUT, CHUNK), i) for i in LAYERS]


def computed(tokens=PROMPT, layout=LAYOUT):
    return HeapKV(layout, len(tokens)).compute(tokens)


def empty(tokens=PROMPT, layout=LAYOUT):
    return HeapKV(layout, len(tokens))


class Ranged(ScanningStore):
    """A store that reads ranges, and notes in one list what it was asked and when."""

    def __init__(self, medium=None, log=None):
        super().__init__({} if medium is None else medium)
        self.log = [] if log is None else log

    def read(self, keys, sink, deadline):
        self.log.extend(("whole", key) for key in keys)
        return super().read(keys, sink, deadline)

    def read_range(self, key, start, into, deadline):
        self._check()
        self.log.append((self.layer(start, into), key))
        return self.answer(key, start, into)

    def answer(self, key, start, into):
        frame = self.fetch(key)
        if frame is None:
            return Miss()
        if start + len(into) > len(frame):
            return Failed(StoreError("beyond the end"))
        into[:] = frame[start : start + len(into)]
        return Hit(len(into))

    @staticmethod
    def layer(start, into):
        return next((i for i, (_, end) in enumerate(SPANS) if end == start + len(into)), None)


class Breaking(Ranged):
    """Answers for one layer of one chunk of a prompt with *outcome* instead."""

    at = None
    outcome = None

    def answer(self, key, start, into):
        number, layer = self.at
        if self.layer(start, into) == layer and list(self.medium)[number] == key:
            into[:] = b"\xee" * len(into)
            return self.outcome
        return super().answer(key, start, into)


def memory():
    return tier("memory", MemoryStore(ManualClock()))


def disk(path):
    return tier("disk", DiskStore(path))


def layerwise(rig, target, tokens=PROMPT, **options):
    """Retrieve layer by layer; each layer must be in the device when it is given."""
    truth = computed(tokens)
    with rig.engine.retrieve_layers(tokens, target, **options) as layers:
        for layer in layers:
            assert same_layer(target, truth, layer, layers.hit_tokens, options.get("skip", 0))
        return layers.result()


def same_layer(one, other, layer, end, start=0):
    for plane in range(len(one.memory[layer])):
        row = one._row(layer, plane)
        part = slice(start * row, end * row)
        if one.memory[layer][plane][part] != other.memory[layer][plane][part]:
            return False
    return True


class Growing(HeapKV):
    """A device whose layers are computed one after another: the later ones hold rubbish."""

    def __init__(self, tokens=PROMPT):
        super().__init__(LAYOUT, len(tokens))
        self.truth = computed(tokens)

    def compute_layer(self, layer):
        for plane, memory in enumerate(self.truth.memory[layer]):
            self.memory[layer][plane][:] = memory


def store_layerwise(rig, tokens=PROMPT, **options):
    device = Growing(tokens)
    with rig.engine.store_layers(tokens, device, **options) as layers:
        for layer in LAYERS:
            device.compute_layer(layer)
            layers.layer_done(layer)
        return layers.result()


def settled(rig):
    """Wait until no worker has anything left to do."""
    for one in rig.tiers.values():
        for lane in (one.reading, one.writing):
            if lane is not None:
                assert lane.drain(rig.engine._until(30))
    return rig.at_rest()


STACKS = {
    "memory": lambda path: [memory()],
    "disk": lambda path: [disk(path)],
    "ranges": lambda path: [tier("ranges", Ranged())],
    "whole": lambda path: [tier("whole", ScanningStore({}))],
    "no index": lambda path: [Tier("asked", DictStore({}), None, TierRules())],
    "memory and disk": lambda path: [memory(), disk(path)],
}


@pytest.fixture(params=STACKS)
def stack(request, tmp_path):
    return STACKS[request.param](tmp_path)


def test_what_was_stored_whole_is_retrieved_layer_by_layer(rig, stack):
    r = rig(stack)
    r.engine.store(PROMPT, computed())
    target = empty()
    got = layerwise(r, target)
    assert target.agrees(computed(), FULL)
    assert (got.hit_tokens, got.loaded_tokens) == (FULL, FULL)
    assert got.loaded_bytes == LAYOUT.chunk_bytes(FULL)
    assert settled(r)


def test_what_was_stored_layer_by_layer_is_retrieved_whole(rig, stack):
    r = rig(stack)
    report = store_layerwise(r)
    assert (report.stored_tokens, report.dropped_tokens) == (FULL, 0)
    target = empty()
    assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert settled(r)


def test_both_ways_answer_and_count_alike(rig):
    answers = []
    for retrieve in (lambda r: r.engine.retrieve(PROMPT, empty()), lambda r: layerwise(r, empty())):
        r = rig([memory(), tier("ranges", Ranged())])
        r.engine.store(PROMPT[: 4 * CHUNK], computed(PROMPT[: 4 * CHUNK]))
        answers.append((retrieve(r), {c: r.telemetry.total(c) for c in Counter}))
    assert answers[0] == answers[1]
    counts = answers[1][1]
    assert counts[Counter.LOOKUPS] == counts[Counter.HITS] + counts[Counter.MISSES] == 10


def test_both_ways_leave_the_same_files_byte_for_byte(rig, tmp_path):
    def frames(path):
        files = [f for f in path.rglob("*") if f.is_file() and f.stat().st_size > PAGE]
        return {f.name: f.read_bytes() for f in files}

    r = rig([disk(tmp_path / "whole")])
    whole = r.engine.store(PROMPT, computed())
    r = rig([disk(tmp_path / "layers")])
    layers = store_layerwise(r)
    assert whole == layers
    assert frames(tmp_path / "whole") == frames(tmp_path / "layers")
    assert len(frames(tmp_path / "layers")) == 10
    r = rig([memory(), disk(tmp_path / "layers")])
    layerwise(r, empty())
    again = rig([disk(tmp_path / "third")])
    with_memory = r.tiers["memory"].store.lend(r.tiers["memory"].index.keys(), "test")
    assert sorted(bytes(lease.frame) for lease in with_memory) == sorted(
        frames(tmp_path / "whole").values()
    ), "what was read layer by layer is promoted as the very frame that is on disk"
    for lease in with_memory:
        lease.release()
    assert again.at_rest()


def test_what_came_layer_by_layer_is_promoted_like_any_other(rig):
    r = rig([memory(), tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["memory"])
    assert layerwise(r, empty()).tiers == {"ranges": FULL}
    target = empty()
    assert layerwise(r, target).tiers == {"memory": FULL}
    assert r.engine.retrieve(PROMPT, target).tiers == {"memory": FULL}
    assert target.agrees(computed(), FULL)


def test_chunks_of_one_prompt_may_lie_on_tiers_of_every_kind(rig, tmp_path):
    r = rig([memory(), tier("ranges", Ranged()), disk(tmp_path), tier("whole", ScanningStore({}))])
    r.engine.store(PROMPT, computed())
    for name, kept in (("memory", (0, 3, 9)), ("ranges", (1, 2, 6)), ("disk", (4, 8))):
        one = r.tiers[name]
        gone = [k for i, k in enumerate(keys_of(r)) if i not in kept]
        one.forget(gone, r.engine._until(1))
    target = empty()
    got = layerwise(r, target)
    assert got.tiers == {
        "memory": 3 * CHUNK,
        "ranges": 3 * CHUNK,
        "disk": 2 * CHUNK,
        "whole": 2 * CHUNK,
    }
    assert target.agrees(computed(), FULL)


def keys_of(rig, tokens=PROMPT):
    return rig.engine._prompt(tokens, None).keys


def test_the_next_layer_is_under_way_when_one_is_given_and_holds_nothing_up(rig):
    """Shown by order alone: nothing in here knows how long anything takes."""
    store, later = Ranged(), Event()
    begun = {layer: Event() for layer in LAYERS}

    def answer(key, start, into):
        layer = store.layer(start, into)
        begun[layer].set()
        assert layer == 0 or later.wait(30)
        return Ranged.answer(store, key, start, into)

    store.answer = answer
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert layers.hit_tokens == FULL
        assert next(layers) == 0, "although no later layer is there"
        assert same_layer(target, computed(), 0, FULL)
        assert begun[1].wait(30)
        assert begun[2].wait(30)
        assert r.tiers["ranges"].reading.pending == 2
        later.set()
        assert list(layers) == [1, 2]
    assert target.agrees(computed(), FULL)
    assert sorted(layer for layer, _ in store.log) == sorted(LAYERS * 10), "each read once"


def test_layers_are_given_to_the_device_one_by_one_and_from_memory_without_a_copy(rig):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    held = r.pool.held_bytes

    class Noting(HeapKV):
        def scatter(self, spans, layers=None):
            assert len(spans) == 10
            seen.append(layers)
            assert r.pool.held_bytes == held
            return super().scatter(spans, layers)

    seen = []
    layerwise(r, Noting(LAYOUT, len(PROMPT)))
    assert seen == [range(i, i + 1) for i in LAYERS]


@pytest.mark.parametrize("task_bytes", [1, 1 << 30])
def test_reading_ahead_is_bounded_in_bytes(rig, monkeypatch, task_bytes):
    monkeypatch.setattr("hexkv.core.layerwise.ranges._BYTES_AHEAD", 1)
    monkeypatch.setattr("hexkv.core.layerwise.ranges._TASK_BYTES", task_bytes)
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    lane, most = r.tiers["ranges"].reading, []

    def answer(key, start, into):
        most.append(lane.pending)
        return Ranged.answer(store, key, start, into)

    store.answer = answer
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert set(most) == {1}
    assert sorted(layer for layer, _ in store.log) == sorted(LAYERS * 10)


def test_a_full_queue_makes_reading_ahead_wait_and_loses_nothing(rig, monkeypatch):
    monkeypatch.setattr("hexkv.core.layerwise.ranges._TASK_BYTES", 1)
    store = Ranged()
    r = rig([tier("ranges", store, lane=LaneRules(workers=1, queue_bytes=1))])
    for end in range(CHUNK, FULL + 1, CHUNK):  # a write at a time: its queue is as short
        r.engine.store(PROMPT[:end], computed(PROMPT[:end]))
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert sorted(layer for layer, _ in store.log) == sorted(LAYERS * 10)
    assert settled(r)


def test_layers_go_into_the_pages_of_a_paged_window(rig, tmp_path):
    layout = KVLayout.attention(DType.FLOAT16, layers=3, heads=2, key_width=8)
    slots = torch.randperm(12 * CHUNK)[: len(PROMPT)]
    pages = [[torch.randn(12, CHUNK, 2, 8).half() for _ in "kv"] for _ in LAYERS]
    truth = [[page.clone() for page in layer] for layer in pages]
    namespace, frame = Namespace("paged", layout), frame_bytes(layout.chunk_bytes(CHUNK))
    r = rig([memory(), disk(tmp_path)], namespace=namespace, frame=frame)
    with r.engine.store_layers(PROMPT, PagedKV(layout, pages, slots)) as layers:
        for layer in LAYERS:
            layers.layer_done(layer)
        assert layers.result().stored_tokens == FULL
    r.engine.clear(PROMPT, tiers=["memory"])
    for layer in pages:
        for page in layer:
            page.zero_()
    with r.engine.retrieve_layers(PROMPT, PagedKV(layout, pages, slots)) as layers:
        for layer in layers:
            for page, was in zip(pages[layer], truth[layer], strict=True):
                loaded, kept = page.view(-1, 2, 8)[slots[:FULL]], was.view(-1, 2, 8)[slots[:FULL]]
                assert torch.equal(loaded, kept)
            assert not any(page.any() for later in pages[layer + 1 :] for page in later)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("number", [0, 4, 9])
@pytest.mark.parametrize(
    "outcome",
    [Hit(1), Miss(), Failed(StoreUnreachable("gone")), TimedOut(), None],
    ids=["short", "absent", "failed", "timed out", "nonsense"],
)
def test_a_layer_that_is_not_given_is_looked_for_in_the_whole_chunk(rig, number, layer, outcome):
    store = Breaking()
    store.at, store.outcome = (number, layer), outcome
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert ("whole", keys_of(r)[number]) in store.log
    assert r.telemetry.total(Counter.CORRUPT) == 0
    assert settled(r)


def damage(store, key, layer):
    frame = bytearray(store.medium[key])
    frame[SPANS[layer][0] + 1] ^= 0x10
    store.medium[key] = bytes(frame)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("number", [0, 4, 9])
def test_a_damaged_layer_ends_the_hit_before_its_chunk_and_is_never_used(rig, number, layer):
    store = Ranged()
    r = rig([memory(), tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["memory"])
    damage(store, keys_of(r)[number], layer)
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert layers.hit_tokens == FULL, "nobody can know yet"
        for given in layers:
            if given >= layer:
                assert layers.hit_tokens == number * CHUNK
            assert same_layer(target, computed(), given, layers.hit_tokens)
        got = layers.result()
    assert got.hit_tokens == got.loaded_tokens == number * CHUNK
    assert got.misses == {"corrupt": 1} | ({"behind a miss": 9 - number} if number < 9 else {})
    assert target.agrees(computed(), number * CHUNK)
    for given in LAYERS[layer:]:
        row = target._row(given, 0)
        assert not any(target.memory[given][0][number * CHUNK * row :]), "only the prefix is loaded"
    assert r.telemetry.total(Counter.CORRUPT) == 1
    assert keys_of(r)[number] not in store.medium
    assert r.engine.lookup(PROMPT).hit_tokens == number * CHUNK
    assert settled(r)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_slower_tier_stands_in_for_a_damaged_layer(rig, layer):
    store = Ranged()
    r = rig([tier("ranges", store), tier("whole", ScanningStore({}))])
    r.engine.store(PROMPT, computed())
    damage(store, keys_of(r)[5], layer)
    target = empty()
    got = layerwise(r, target)
    assert got.tiers == {"ranges": 9 * CHUNK, "whole": CHUNK}
    assert target.agrees(computed(), FULL)
    assert r.telemetry.total(Counter.CORRUPT) == 1
    assert settled(r)


def test_a_damaged_layer_on_disk_is_refused(rig, tmp_path):
    r = rig([disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    name = keys_of(r)[3].hex()
    (path,) = [f for f in tmp_path.rglob("*") if name[-32:] in f.name or name in f.name]
    frame = bytearray(path.read_bytes())
    frame[SPANS[2][0]] ^= 1
    path.write_bytes(frame)
    target = empty()
    assert layerwise(r, target).hit_tokens == 3 * CHUNK
    assert target.agrees(computed(), 3 * CHUNK)


def test_a_frame_of_another_chunk_is_refused_at_the_first_layer(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    keys = keys_of(r)
    store.medium[keys[4]] = store.medium[keys[5]]
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert next(layers) == 0
        assert layers.hit_tokens == 4 * CHUNK


def test_a_frame_whose_parts_are_no_layers_is_read_whole(rig):
    """The header says where parts end: a writer may have had other ones in mind."""
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    codec = r.engine._stack.runtime.codec
    for number in (2, 7):
        key = keys_of(r)[number]
        frame = bytearray(store.medium[key])
        codec.seal(memoryview(frame), replace(codec.open(memoryview(frame)), parts=()))
        store.medium[key] = bytes(frame)
    target = empty()
    assert layerwise(r, target).hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert [asked for asked, _ in store.log].count("whole") == 2


class Eight:
    """A serde for KV that repeats itself every eight bytes."""

    name, lossless, per_layer = "eight/1", True, False

    def bound(self, raw_bytes):
        return raw_bytes

    def encode(self, chunk, layout, tokens, into):
        into[:8] = bytes(chunk[:8])
        return 8

    def decode(self, payload, layout, tokens, into):
        into[:] = bytes(payload) * (len(into) // 8)


DEEP = KVLayout.attention(DType.FLOAT16, layers=9, heads=8, key_width=16)


def repeating(tokens=PROMPT):
    device = empty(tokens, DEEP)
    for planes in device.memory:
        for memory in planes:
            memory[:] = b"12345678" * (len(memory) // 8)
    return device


def deep(rig, *tiers, **options):
    frame = frame_bytes(DEEP.chunk_bytes(CHUNK))
    namespace = Namespace("deep", DEEP)
    return rig(tiers, frame=frame, namespace=namespace, serdes={"eight/1": Eight()}, **options)


def test_a_chunk_that_is_encoded_meanwhile_is_still_given_and_nothing_is_called_damaged(rig):
    store = Ranged()
    r = deep(rig, tier("ranges", store))
    r.engine.store(PROMPT, repeating())
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert next(layers) == 0
        assert r.engine.compress(PROMPT, "ranges", "eight/1").done == 10
        assert list(layers) == list(range(1, 9))
        assert layers.result().hit_tokens == FULL
    assert target.agrees(repeating(), FULL)
    assert [asked for asked, _ in store.log].count("whole") >= 10, "they were read again, whole"
    assert r.telemetry.total(Counter.CORRUPT) == 0
    assert settled(r)


@pytest.mark.parametrize("kind", [Ranged, ScanningStore])
def test_chunks_that_a_serde_encoded_are_read_once_and_given_layer_by_layer(rig, kind):
    store = kind({})
    r = deep(rig, tier("encoded", store, serde="eight/1"))
    with r.engine.store_layers(PROMPT, repeating()) as layers:
        for layer in range(9):
            layers.layer_done(layer)
        assert layers.result().stored_tokens == FULL
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert list(layers) == list(range(9))
        assert layers.hit_tokens == FULL
    assert target.agrees(repeating(), FULL)
    if kind is Ranged:
        assert [asked for asked, _ in store.log] == ["whole"] * 10
    assert settled(r)


def test_a_chunk_that_memory_keeps_encoded_is_given_layer_by_layer(rig):
    r = deep(rig, memory())
    r.engine.store(PROMPT, repeating())
    assert r.engine.compress(PROMPT, "memory", "eight/1").done == 10
    target = empty(PROMPT, DEEP)
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        assert list(layers) == list(range(9))
        assert layers.hit_tokens == FULL
    assert target.agrees(repeating(), FULL)


def test_more_layers_than_a_header_has_parts_are_read_in_runs(rig):
    layout = KVLayout.attention(DType.FLOAT16, layers=PARTS + 3, heads=1, key_width=4)
    store = Ranged()
    frame = frame_bytes(layout.chunk_bytes(CHUNK))
    r = rig([tier("ranges", store)], frame=frame, namespace=Namespace("tall", layout))
    tokens = PROMPT[: 2 * CHUNK]
    r.engine.store(tokens, computed(tokens, layout))
    target = empty(tokens, layout)
    with r.engine.retrieve_layers(tokens, target) as layers:
        assert list(layers) == list(range(layout.layers))
    assert target.agrees(computed(tokens, layout), 2 * CHUNK)
    assert len(store.log) == 2 * len(layer_parts(layout, CHUNK)) < 2 * PARTS, "two at a time"
    assert settled(r)


def test_an_unfull_tail_comes_layer_by_layer_too(rig, tmp_path):
    r = rig([disk(tmp_path)], chunker=PrefixChunker(CHUNK, keep_tail=True))
    store_layerwise(r)
    target = empty()
    assert layerwise(r, target).hit_tokens == len(PROMPT)
    assert target.agrees(computed(), len(PROMPT))


@pytest.mark.parametrize("as_mask", [False, True])
def test_skipped_tokens_are_neither_loaded_nor_stored(rig, as_mask):
    r = rig([tier("ranges", Ranged())])
    skip = 3 * CHUNK
    how = {"mask": [i >= skip for i in range(len(PROMPT))]} if as_mask else {"skip": skip}
    report = store_layerwise(r, **how)
    assert report.stored_tokens == FULL - skip
    r.engine.store(PROMPT[:skip], computed(PROMPT[:skip]))
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target, **how) as layers:
        assert list(layers) == LAYERS
        got = layers.result()
    assert (got.hit_tokens, got.loaded_tokens) == (FULL, FULL - skip)
    assert target.agrees(computed(), FULL, skip)
    assert target.agrees(empty(), skip)


def test_nothing_found_still_gives_every_layer(rig):
    r = rig([memory(), tier("ranges", Ranged())])
    with r.engine.retrieve_layers(PROMPT, empty()) as layers:
        assert layers.hit_tokens == 0
        assert list(layers) == LAYERS
        got = layers.result()
    assert (got.hit_tokens, got.misses) == (0, {"absent": 10})
    for nothing in ([], PROMPT[: CHUNK - 1]):
        with r.engine.retrieve_layers(nothing, empty(nothing)) as layers:
            assert list(layers) == LAYERS
            assert layers.result().hit_tokens == 0


@pytest.mark.parametrize("given", [0, 1, 2])
@pytest.mark.parametrize("kind", [Ranged, ScanningStore])
def test_leaving_early_frees_everything_and_counts_nothing(rig, kind, given):
    r = rig([memory(), tier("slow", kind({}))])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["memory"])
    with r.engine.retrieve_layers(PROMPT, empty()) as layers:
        for _ in range(given):
            next(layers)
        with pytest.raises(InvalidRequest, match="still to come"):
            layers.result()
    assert settled(r)
    assert r.pool.held_bytes == 0
    assert r.telemetry.total(Counter.LOOKUPS) == 0


def test_a_read_that_hangs_when_the_context_is_left_keeps_its_blocks_until_it_ends(rig):
    store, gate, inside = Ranged(), Event(), Event()

    def answer(key, start, into):
        inside.set()
        assert gate.wait(30)
        return Ranged.answer(store, key, start, into)

    store.answer = answer
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, empty()):
        assert inside.wait(30)
    assert r.pool.ledger() == {"layer read": 10}
    gate.set()
    assert settled(r)
    assert r.pool.held_bytes == 0
    assert len(store.log) == 1, "what nobody waits for is not read"


def test_nothing_goes_on_after_the_context_was_left(rig):
    r = rig([memory()])
    with r.engine.store_layers(PROMPT, computed()) as storing:
        storing.layer_done(0)
    for call in (storing.result, lambda: storing.layer_done(1)):
        with pytest.raises(InvalidRequest, match="was left"):
            call()
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, empty()) as loading:
        next(loading)
    with pytest.raises(InvalidRequest, match="was left"):
        next(loading)
    with r.engine.retrieve_layers(PROMPT, empty()) as loading:
        list(loading)
    assert loading.result().hit_tokens == FULL, "the answer stays"
    assert list(loading) == []


def test_an_error_of_the_host_frees_everything(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    r.engine.clear(PROMPT, tiers=["memory"])

    def fails(step):
        step()
        raise KeyError("the host's own")

    with pytest.raises(KeyError), r.engine.retrieve_layers(PROMPT, empty()) as layers:
        fails(lambda: next(layers))
    with pytest.raises(KeyError), r.engine.store_layers(PROMPT[::-1], empty()) as layers:
        fails(lambda: layers.layer_done(0))
    assert settled(r)
    assert r.engine.lookup(PROMPT[::-1]).hit_tokens == 0


def test_a_device_that_fails_loads_nothing_more(rig):
    class Failing(HeapKV):
        def scatter(self, spans, layers=None):
            if layers == range(1, 2):
                raise OSError("no such device any more")
            return super().scatter(spans, layers)

    r = rig([tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, Failing(LAYOUT, len(PROMPT))) as layers:
        assert next(layers) == 0
        assert list(layers) == [1, 2]
        got = layers.result()
    assert (got.hit_tokens, got.misses) == (0, {"device": 1, "behind a miss": 9})
    assert settled(r)


def test_a_device_whose_copy_is_late_keeps_the_blocks_until_it_ends(rig):
    class Late:
        done = False

        def wait(self, deadline):
            return self.done

    class Slow(HeapKV):
        def scatter(self, spans, layers=None):
            super().scatter(spans, layers)
            return late

        gather = HeapKV.gather

    late = Late()
    r = rig([tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    with r.engine.retrieve_layers(PROMPT, Slow(LAYOUT, len(PROMPT))) as layers:
        assert next(layers) == 0
        assert layers.hit_tokens == 0
    assert r.pool.ledger().get("late copy") == 10
    late.done = True
    r.engine.lookup(PROMPT)
    assert settled(r)


def test_only_the_time_in_the_engine_counts_against_the_deadline(rig):
    r = rig([tier("ranges", Ranged())])
    r.engine.store(PROMPT, computed())
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target) as layers:
        for _ in layers:
            r.clock.advance(3_600)
        assert layers.result().hit_tokens == FULL
    device = Growing(PROMPT[::-1])
    with r.engine.store_layers(PROMPT[::-1], device) as layers:
        for layer in LAYERS:
            r.clock.advance(3_600)
            layers.layer_done(layer)
        assert layers.result().stored_tokens == FULL


def test_a_dead_tier_costs_its_deadline_once_over_all_layers(rig):
    store, gate = Ranged(), Event()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    clock, waits = r.clock, []

    def wait(condition, ready, deadline):
        """A lane that ends nothing before the deadline."""
        if ready():
            return True
        waits.append(deadline.remaining())
        clock.advance(deadline.remaining())
        return ready()

    store.answer = lambda key, start, into: gate.wait(30) and TimedOut()
    r.engine._executor.wait = wait
    with r.engine.retrieve_layers(PROMPT, empty()) as layers:
        assert list(layers) == LAYERS
        got = layers.result()
    del r.engine._executor.wait
    gate.set()
    assert sum(waits) == pytest.approx(r.engine._deadlines.retrieve)
    assert got.hit_tokens == 0
    assert settled(r)


def test_a_prompt_longer_than_the_pool_is_loaded_and_stored_from_its_beginning(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    r = rig([disk(tmp_path)], slots=6)
    target = empty()
    got = layerwise(r, target)
    assert 0 < got.hit_tokens < FULL
    assert target.agrees(computed(), got.hit_tokens)
    assert got.misses == {"refused": 1, "behind a miss": 9 - got.hit_tokens // CHUNK}
    assert settled(r)
    other = PROMPT[::-1]
    report = store_layerwise(r, other)
    assert 0 < report.stored_tokens < FULL
    assert report.stored_tokens + report.dropped_tokens == FULL
    target = empty(other)
    assert r.engine.retrieve(other, target).hit_tokens == report.stored_tokens
    assert target.agrees(computed(other), report.stored_tokens)


def test_a_pool_of_one_block_still_serves_one_chunk(rig):
    r = rig([tier("ranges", Ranged())], slots=1)
    assert store_layerwise(r).stored_tokens == CHUNK
    assert layerwise(r, empty()).hit_tokens == CHUNK


def test_a_call_waits_for_no_block_that_its_own_host_may_hold(rig):
    r = rig([tier("ranges", Ranged())], slots=1)
    r.engine.store(PROMPT[:CHUNK], computed(PROMPT[:CHUNK]))
    with r.engine.retrieve_layers(PROMPT, empty()) as loading:
        assert loading.hit_tokens == CHUNK
        report = store_layerwise(r)
        assert (report.present_tokens, report.stored_tokens) == (CHUNK, 0)
        assert report.dropped_tokens == FULL - CHUNK
        assert list(loading) == LAYERS


def test_room_for_one_chunk_never_pushes_out_another_of_the_same_prompt(rig):
    r = rig([memory(), tier("ranges", Ranged())], slots=12)
    r.engine.store(PROMPT, computed())
    target = empty()
    got = layerwise(r, target)
    assert got.hit_tokens >= got.tiers["memory"]
    assert target.agrees(computed(), got.hit_tokens)
    assert settled(r)


def test_what_a_prefetch_read_is_picked_up(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    r.engine.prefetch("request 1", PROMPT)
    assert r.tiers["ranges"].reading.drain(r.engine._until(30))
    before = len(store.log)
    target = empty()
    got = layerwise(r, target, lookup_id="request 1")
    assert got.hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert not {asked for asked, _ in store.log[before:]} & {"whole"}
    assert r.engine.health().prefetches == 0
    assert settled(r)


def test_storing_copies_each_layer_when_it_is_done_and_waits_for_the_copies_at_the_end(rig):
    log = []

    class Copy:
        def __init__(self, layers):
            self.layers = layers

        def wait(self, deadline):
            log.append(("waited", self.layers))
            return True

    class Noting(Growing):
        def gather(self, spans, layers=None):
            log.append(("copied", layers))
            super().gather(spans, layers)
            return Copy(layers)

    device = Noting()
    r = rig([memory(), tier("ranges", Ranged())])
    one = [range(i, i + 1) for i in LAYERS]
    with r.engine.store_layers(PROMPT, device) as layers:
        for layer in LAYERS:
            device.compute_layer(layer)
            layers.layer_done(layer)
            assert log == [("copied", which) for which in one[: layer + 1]]
        assert r.engine.lookup(PROMPT).hit_tokens == 0, "nothing is visible before it is whole"
        assert layers.result().stored_tokens == FULL
        assert layers.result().stored_tokens == FULL, "asking again changes nothing"
    assert log[3:] == [("waited", which) for which in one]
    target = empty()
    r.engine.retrieve(PROMPT, target)
    assert target.agrees(computed(), FULL)


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_store_that_is_left_early_stores_nothing(rig, tmp_path, done):
    r = rig([memory(), disk(tmp_path)])
    with r.engine.store_layers(PROMPT, computed()) as layers:
        for layer in range(done):
            layers.layer_done(layer)
        if done < 3:
            with pytest.raises(InvalidRequest, match=f"layer {done} is not done"):
                layers.result()
    assert settled(r)
    assert r.pool.held_bytes == 0
    assert r.engine.lookup(PROMPT).hit_tokens == 0


def test_layers_may_be_done_in_any_order_but_each_once(rig):
    r = rig([memory()])
    with r.engine.store_layers(PROMPT, computed()) as layers:
        for layer in (2, 0):
            layers.layer_done(layer)
        for wrong in (0, 2, -1, 3):
            with pytest.raises(InvalidRequest, match="was done, or is none"):
                layers.layer_done(wrong)
        layers.layer_done(1)
        assert layers.result().stored_tokens == FULL
    target = empty()
    r.engine.retrieve(PROMPT, target)
    assert target.agrees(computed(), FULL)


@pytest.mark.parametrize("how", ["raises", "late", "breaks"])
def test_a_copy_that_fails_stores_nothing_of_the_prompt(rig, how):
    class Copy:
        done = False

        def wait(self, deadline):
            if how == "breaks":
                raise OSError("lost")
            return self.done

    class Failing(HeapKV):
        def gather(self, spans, layers=None):
            if layers != range(1, 2):
                return super().gather(spans, layers)
            if how == "raises":
                raise OSError("no device")
            return copy

    copy = Copy()
    r = rig([memory(), tier("ranges", Ranged())])
    with r.engine.store_layers(PROMPT, Failing(LAYOUT, len(PROMPT)).compute(PROMPT)) as layers:
        for layer in LAYERS:
            layers.layer_done(layer)
        report = layers.result()
    assert (report.stored_tokens, report.dropped_tokens) == (0, FULL)
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    copy.done = True
    r.engine.lookup(PROMPT)
    assert settled(r)


def test_what_is_there_is_not_copied_again(rig):
    r = rig([memory(), tier("ranges", Ranged())])
    r.engine.store(PROMPT[: 4 * CHUNK], computed(PROMPT[: 4 * CHUNK]))

    class Counting(Growing):
        def gather(self, spans, layers=None):
            assert len(spans) == 6
            return super().gather(spans, layers)

    device = Counting()
    with r.engine.store_layers(PROMPT, device) as layers:
        for layer in LAYERS:
            device.compute_layer(layer)
            layers.layer_done(layer)
        report = layers.result()
    assert (report.present_tokens, report.stored_tokens) == (4 * CHUNK, 6 * CHUNK)
    assert report.tiers == {"memory": 6 * CHUNK, "ranges": 6 * CHUNK}
    again = store_layerwise(r)
    assert (again.present_tokens, again.stored_tokens) == (FULL, 0)


def test_without_waiting_slower_tiers_are_written_after_the_call(rig):
    store, gate = Ranged(), Event()

    def publish(name, frame):
        assert gate.wait(30)
        store.medium[name] = frame

    store.publish = publish
    r = rig([tier("ranges", store)])
    report = store_layerwise(r, wait=False)
    assert (report.stored_tokens, report.queued_tokens) == (0, FULL)
    gate.set()
    assert r.engine.flush()
    assert layerwise(r, empty()).hit_tokens == FULL


def test_a_frozen_engine_stores_nothing(rig):
    r = rig([memory()])
    r.engine.freeze()
    report = store_layerwise(r)
    assert (report.frozen, report.tokens, report.stored_tokens) == (True, len(PROMPT), 0)
    assert r.engine.lookup(PROMPT).hit_tokens == 0


@pytest.mark.parametrize("name", ["retrieve_layers", "store_layers"])
def test_what_means_nothing_is_refused_at_the_door(rig, name):
    r = rig([memory()])
    call = getattr(r.engine, name)
    with pytest.raises(InvalidRequest), call(PROMPT, empty(PROMPT[:-1])):
        pass
    with pytest.raises(LayoutMismatch), call(PROMPT, empty(PROMPT, DEEP)):
        pass
    with pytest.raises(InvalidRequest), call(PROMPT, empty(), skip=-1):
        pass
    with pytest.raises(InvalidRequest), call(PROMPT, empty(), skip=1, mask=[True] * len(PROMPT)):
        pass
    with pytest.raises(InvalidRequest), call([-1], empty([1])):
        pass
    assert settled(r)
    r.engine.close()
    with pytest.raises(EngineClosed), call(PROMPT, empty()):
        pass


def test_a_store_that_lacks_layers_it_seemed_to_hold_is_a_miss(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    for key in keys_of(r)[2:]:
        del store.medium[key]
    target = empty()
    got = layerwise(r, target)
    assert (got.hit_tokens, got.misses) == (2 * CHUNK, {"absent": 8})
    assert r.engine.lookup(PROMPT).hit_tokens <= 3 * CHUNK, "the index has learnt of it"
    assert target.agrees(computed(), 2 * CHUNK)
    assert settled(r)


def test_a_tier_that_is_switched_off_is_not_asked(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    r.tiers["ranges"].reading.breaker.failed(at_once=True)
    with r.engine.retrieve_layers(PROMPT, empty()) as layers:
        assert list(layers) == LAYERS
        assert layers.result().hit_tokens == 0
    assert store.log == []
    assert settled(r)


def test_many_threads_load_and_store_layer_by_layer_at_once(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)], slots=48)
    prompts = [PROMPT[:CHUNK] + [n] * (6 * CHUNK) for n in range(6)]
    truths = {n: computed(tokens) for n, tokens in enumerate(prompts)}
    wrong = []

    def work(n):
        for turn in range(4):
            m = (n + turn) % len(prompts)
            tokens, target = prompts[m], empty(prompts[m])
            with r.engine.retrieve_layers(tokens, target) as layers:
                for _ in layers:
                    if turn == 2 and n % 2:
                        break
            if not target.agrees(truths[m], layers.hit_tokens if turn != 2 else 0):
                wrong.append((n, turn))
            store_layerwise(r, tokens)

    threads = [Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert settled(r)
    for n, tokens in enumerate(prompts):
        target = empty(tokens)
        assert target.agrees(truths[n], layerwise(r, target, tokens).hit_tokens)
