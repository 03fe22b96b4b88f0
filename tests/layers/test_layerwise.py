"""What retrieving and storing layer by layer promise: the same chunks, sooner, no less safely."""

from threading import Thread

import pytest
import torch

from dict_store import DictStore, ScanningStore
from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import PARTS, layer_parts
from hexkv.core.requests.layers.groups import part_groups
from hexkv.core.tiers.tier import TierPlan
from hexkv.core.tiers.write.clearing import forget
from hexkv.kernels.paged import PagedKV
from hexkv.ports import (
    PAGE,
    CounterName,
    DType,
    EngineClosed,
    InvalidRequest,
    KVLayout,
    LayoutMismatch,
    Namespace,
    frame_bytes,
)
from layered import (
    DEEP,
    FULL,
    LAYERS,
    PROMPT,
    Ranged,
    computed,
    disk,
    empty,
    keys_of,
    layerwise,
    memory,
    settled,
    store_layerwise,
)
from rigging import CHUNK, LAYOUT, tier

pytestmark = pytest.mark.usefixtures("one_by_one")

STACKS = {
    "memory": lambda path: [memory()],
    "disk": lambda path: [disk(path)],
    "ranges": lambda path: [tier("ranges", Ranged())],
    "whole": lambda path: [tier("whole", ScanningStore({}))],
    "no index": lambda path: [TierPlan("asked", DictStore({}))],
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
        answers.append((retrieve(r), {c: r.telemetry.total(c) for c in CounterName}))
    assert answers[0] == answers[1]
    counts = answers[1][1]
    assert (
        counts[CounterName.LOOKUPS] == counts[CounterName.HITS] + counts[CounterName.MISSES] == 10
    )


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
    with_memory = r.tiers["memory"].store.get_lease(r.tiers["memory"].index.keys(), "test")
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
        forget(one, gone, r.engine.admin._until(1))
    target = empty()
    got = layerwise(r, target)
    assert got.tiers == {
        "memory": 3 * CHUNK,
        "ranges": 3 * CHUNK,
        "disk": 2 * CHUNK,
        "whole": 2 * CHUNK,
    }
    assert target.agrees(computed(), FULL)


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
            assert not any(page.any() for later in pages[layer + 2 :] for page in later)


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
    groups = part_groups(layout, 2 * CHUNK)
    assert sum(map(len, groups)) == len(layer_parts(layout, CHUNK)) < PARTS, "two layers each"
    assert len(store.log) == 2 * len(groups)
    assert settled(r)


def test_skipped_tokens_are_neither_loaded_nor_stored(rig):
    r = rig([tier("ranges", Ranged())])
    skip = 3 * CHUNK
    report = store_layerwise(r, skip=skip)
    assert report.stored_tokens == FULL - skip
    r.engine.store(PROMPT[:skip], computed(PROMPT[:skip]))
    target = empty()
    with r.engine.retrieve_layers(PROMPT, target, skip=skip) as layers:
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


def test_what_a_prefetch_read_is_picked_up(rig):
    store = Ranged()
    r = rig([tier("ranges", store)])
    r.engine.store(PROMPT, computed())
    r.engine.prefetch("request 1", PROMPT)
    assert r.tiers["ranges"].reading.drain(r.engine.admin._until(30))
    before = len(store.log)
    target = empty()
    got = layerwise(r, target, lookup_id="request 1")
    assert got.hit_tokens == FULL
    assert target.agrees(computed(), FULL)
    assert not {asked for asked, _ in store.log[before:]} & {"whole"}
    assert r.engine.health().prefetches == 0
    assert settled(r)


@each("name", ["retrieve_layers", "store_layers"])
def test_what_means_nothing_is_refused_at_the_door(rig, name):
    r = rig([memory()])
    call = getattr(r.engine, name)
    with pytest.raises(InvalidRequest), call(PROMPT, empty(PROMPT[:-1])):
        pass
    with pytest.raises(LayoutMismatch), call(PROMPT, empty(PROMPT, DEEP)):
        pass
    with pytest.raises(InvalidRequest), call(PROMPT, empty(), skip=-1):
        pass
    with pytest.raises(InvalidRequest), call([-1], empty([1])):
        pass
    assert settled(r)
    r.engine.close()
    with pytest.raises(EngineClosed), call(PROMPT, empty()):
        pass


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
