"""Layers that are stored, and pushed to a decoder's node, while later ones are computed."""

import random
from concurrent.futures import wait
from contextlib import closing
from threading import Event

import pytest

from engines.vllm.vllm_ranks import LAYERS, RankedToy, Ranks, name_of
from engines.vllm.vllm_toy import alone, packed
from hexkv.adapters.vllm.worker import sharded
from hexkv.adapters.vllm.worker.early_saves import EarlySaves
from hexkv.adapters.vllm.worker.sharded import ShardedCache
from hexkv.contracts.chunk_cache._base import soon
from nodes import MEMORY, Node
from peers.pushing import DECODE, nodes
from processes import until

PARTS = 4
CHUNK = 32
GIVES = {"do_remote_decode": True, "hexkv": {"decode_node": DECODE}}


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture
def machines(tmp_path):
    with nodes(tmp_path, Node, slots=512, memory=256, frame=2 * CHUNK * 1024) as machines:
        yield machines


@pytest.fixture
def pair(start, machines):
    """``pair(before, behind)``: engines at the two nodes; the first stores layer by layer."""

    def begin(before=Ranks(), behind=Ranks(), **settings):  # noqa: B008
        shared = {"shards": {"heads": 2, "layers": PARTS}, "wait_seconds": 60.0} | settings
        return [
            start(toy=RankedToy, node=node.path, connector=shared | own, ranks=ranks, budget=256)
            for node, ranks, own in zip(
                machines, (before, behind), ({"storing": "layerwise"}, {}), strict=True
            )
        ]

    return begin


def kept(node):
    return len(node.served.stack.tiers[0].index.keys())


def at_rest(node):
    with closing(node.client()) as client:
        told = client.health(soon())
        return told is not None and not told.pins and set(told.leases) <= {MEMORY}


class Watched:
    """What is at both nodes when each layer of a prefill is computed."""

    def __init__(self, toy, machines):
        self.seen = {}
        self._worker, self._machines = toy.worker, machines
        toy.worker = self

    def save_kv_layer(self, name, cache, metadata):
        self._worker.save_kv_layer(name, cache, metadata)
        layer = next(layer for layer in range(LAYERS) if name_of(layer) == name)
        if (layer + 1) % (LAYERS // PARTS) == 0 and layer not in self.seen:
            wanted = (layer + 1) // (LAYERS // PARTS) * self.each
            for node in self._machines:
                until(lambda node=node: kept(node) >= wanted)
            self.seen[layer] = [kept(node) for node in self._machines]

    def __getattr__(self, name):
        return getattr(self._worker, name)


@pytest.mark.parametrize(
    "ranks",
    [
        (Ranks(), Ranks()),
        pytest.param((Ranks(2), Ranks()), marks=pytest.mark.thorough),
        pytest.param((Ranks(1, 2), Ranks(2)), marks=pytest.mark.thorough),
        pytest.param((Ranks(2, 2), Ranks(1, 2)), marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_layers_are_at_the_decoders_node_before_later_ones_are_computed(pair, machines, ranks):
    prefill, decode = pair(*ranks)
    watched = Watched(prefill, machines)
    watched.each = 2 * 4  # of the heads' halves three chunks and the tail
    words = prompt(1, 100)
    prefill.add("p", words, count=1, params=GIVES)
    prefill.run(300)
    assert list(watched.seen) == [1, 3, 5, 7]
    decode.add("d", words, params=prefill.told["p"])
    decode.run(300)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 99
    for node in machines:
        until(lambda node=node: at_rest(node))


def test_of_a_step_that_dies_within_nothing_is_found(pair, machines):
    prefill, decode = pair(hold_seconds=1.0, wait_seconds=1.0)
    watched = Watched(prefill, machines)
    watched.each = 2 * 4
    words = prompt(2, 100)

    def dies(name, cache, metadata):
        Watched.save_kv_layer(watched, name, cache, metadata)
        if name == name_of(LAYERS // 2 - 1):
            raise ZeroDivisionError("as the process would")

    watched.__dict__["save_kv_layer"] = dies
    prefill.add("p", words, count=1, params=GIVES)
    with pytest.raises(ZeroDivisionError):
        prefill.run(300)
    assert kept(machines[1]) == 2 * 4 * 2, "half of the layers are there"
    prefill.worker = watched._worker
    prefill.close()
    decode.add("d", words, params={"do_remote_prefill": True})
    decode.run(300)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 0
    for node in machines:
        until(lambda node=node: at_rest(node))


def test_vllm_gets_its_blocks_back_when_all_of_it_is_copied(pair, monkeypatch):
    prefill, _ = pair()
    copied, may = [], Event()
    before = ShardedCache.store_part

    def slow(self, part, tokens, device, **more):
        assert may.wait(60)
        report = before(self, part, tokens, device, **more)
        copied.append(part)
        return report

    monkeypatch.setattr(ShardedCache, "store_part", slow)
    free = prefill.scheduler.kv_cache_manager.block_pool.get_num_free_blocks
    whole = free()
    prefill.add("p", prompt(3, 100), count=1, params=GIVES)
    for _ in range(4):
        prefill.step()
        assert free() < whole, "no step waits, and no block is given back"
    may.set()
    until(lambda: prefill.step() or free() == whole)
    assert len(copied) == 2 * PARTS, "the chunks, and the tail"


def too_early(monkeypatch):
    """A layer counts as computed with the one before it."""
    before = EarlySaves.computed

    def computed(self, step, layer, sound):
        names = [name_of(number) for number in range(LAYERS)]
        for one in names[: names.index(layer) + 2]:
            before(self, step, one, sound)
        for early in self._current.begun.values():
            wait(early.parts.values(), 60)

    monkeypatch.setattr(EarlySaves, "computed", computed)


def other_part(monkeypatch):
    """The layers of one part are stored as those of another one."""
    before = ShardedCache._store_slices

    def store(self, slices, tokens, device, *rest, **more):
        slices = list(slices)
        turned = [*device[len(slices) :], *device[: len(slices)]]
        return before(self, slices, tokens, turned, *rest, **more)

    monkeypatch.setattr(ShardedCache, "_store_slices", store)


def other_chunk(monkeypatch):
    """A chunk gets the blocks of the one before it."""
    before = sharded.ShardedPages.window

    def window(self, blocks, start):
        each = CHUNK // self.block
        return before(self, [*blocks[each:], *blocks[:each]], start)

    monkeypatch.setattr(sharded.ShardedPages, "window", window)


def some_parts(monkeypatch):
    """A chunk is found when its first part is there."""

    def lookup(self, tokens, *, pin=None, namespace=None):
        return self._engine.lookup(tokens, pin=pin, namespace=self._names(namespace)[0])

    monkeypatch.setattr(ShardedCache, "lookup", lookup)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [None, too_early, other_part, other_chunk], ids=str)
def test_the_toy_notices_layers_parts_and_chunks_in_each_others_place(pair, monkeypatch, mutant):
    prefill, decode = pair()
    words = prompt(4, 100)
    with monkeypatch.context() as broken:
        if mutant is not None:
            mutant(broken)
        prefill.add("p", words, count=1, params=GIVES)
        prefill.run(300)
    decode.add("d", words, params=prefill.told["p"])
    decode.run(300)
    assert decode.cached["d"] == 99, "it is found"
    assert (decode.answers()["d"] == alone(words, 4)) == (mutant is None)


@pytest.mark.thorough
@pytest.mark.parametrize("broken", [False, True])
def test_a_chunk_counts_as_found_with_all_of_its_parts_alone(pair, monkeypatch, machines, broken):
    prefill, decode = pair(hold_seconds=0.0)
    words = prompt(5, 3 * CHUNK)
    prefill.add("p", words, count=1, params=GIVES)
    prefill.run(300)
    [cache] = decode.engines
    tokens = packed(words)
    until(lambda: cache.lookup(tokens).hit_tokens == 3 * CHUNK)
    if broken:
        some_parts(monkeypatch)
    last = cache.chunk_keys(tokens)[-1]
    until(lambda: cache.chunks.forget([last], soon()) or not cache.chunks.match([last], soon())[0])
    assert (cache.lookup(tokens).hit_tokens == 2 * CHUNK) == (not broken)
