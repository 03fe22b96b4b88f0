"""One stored form for every number of ranks: what is cut, and what comes out of it."""

import dataclasses
import functools
import random
from array import array
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.hf.attention_toy import BLOCK, VOCABULARY, AttentionToy, PagedRank
from hexkv.adapters.vllm.configuration import shards as cutting
from hexkv.adapters.vllm.configuration.identity import Rank
from hexkv.adapters.vllm.configuration.inspection import Memory
from hexkv.adapters.vllm.configuration.settings import ConnectorSettings, ShardSettings
from hexkv.adapters.vllm.configuration.shards import narrowed, own_partition, shards_of
from hexkv.adapters.vllm.configuration.windows import LayerShape
from hexkv.adapters.vllm.worker import sharded
from hexkv.adapters.vllm.worker.sharded import ShardedCache, ShardedPages, slices_of
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import ConfigError, Namespace

CHUNK = 2 * BLOCK
TOKENS = random.Random(3).choices(range(VOCABULARY), k=5 * CHUNK)
MORE = 5
PACKED = memoryview(array("I", TOKENS)).cast("B").cast("I")

PAIRS = [  # ranks and stages of who prefills, of who decodes, and parts by heads and layers
    ((4, 1), (2, 1), (4, 1)),
    ((2, 1), (4, 1), (4, 1)),
    ((2, 1), (1, 1), (2, 1)),
    ((1, 1), (2, 1), (2, 1)),
    ((1, 2), (1, 1), (1, 2)),
    ((1, 1), (1, 3), (1, 3)),
    ((2, 3), (4, 2), (4, 6)),
    ((8, 1), (1, 1), (4, 1)),
]
"""The last has two ranks for each KV head."""


@functools.cache
def known(latent):
    """A model, the KV of the tokens, and the logits behind one more, without any cache."""
    toy = AttentionToy(latent=latent)
    return toy, toy.computed(TOKENS)[1], toy.computed([*TOKENS, MORE])[0]


class Fleet:
    """Ranks of any numbers over one cache."""

    def __init__(self):
        whole = slices(PagedRank(0, 1, 1, latent=False), (1, 1))
        settings = {
            "chunk": {"size": CHUNK},
            "pool": {"bytes": "16MiB"},
            "deadlines": {"lookup": 60.0, "retrieve": 60.0, "store": 60.0},
            "tiers": [{"store": "memory"}],
        }
        self.engine = build(load(None, {}, settings), Namespace("toy", whole[0].pages.layout))

    def farthest(self, latent, before, behind, cut, *, between=lambda: None):
        """How far logits are from those without a cache, at most.

        Args:
            latent: which model.
            before: how many ranks and stages store what it computed.
            behind: how many then load it.
            cut: how many parts there are, by heads and by layers.
            between: what happens after one and before the other.
        """
        toy, kv, wanted = known(latent)
        self.engine.clear(everything=True)
        for rank in ranks(*before, latent):
            rank.write(kv)
            if rank.rank.first:
                cache, window = self.cut(rank, cut)
                assert cache.store(PACKED, window).stored_tokens == len(TOKENS)
        between()
        others = ranks(*behind, latent)
        for rank in others:
            cache, window = self.cut(rank, cut)
            assert cache.lookup(PACKED).hit_tokens == len(TOKENS)
            assert cache.retrieve(PACKED, window).hit_tokens == len(TOKENS)
            rank.tokens = len(TOKENS)
        return float((toy.decoded(MORE, others) - wanted).abs().max())

    def cut(self, rank, cut):
        """A rank's cache, and its windows on its first blocks."""
        found = slices(rank, cut)
        window = ShardedPages(found).window(rank.blocks[: len(TOKENS) // BLOCK].tolist(), 0)
        return ShardedCache(self.engine, found), window


def ranks(tensor, pipeline, latent):
    numbers = range(tensor * pipeline)
    return [PagedRank(number, tensor, pipeline, latent=latent) for number in numbers]


def slices(rank, cut):
    heads, layers = cut
    ours = ConnectorSettings(shards=ShardSettings(1 if rank.latent else heads, layers))
    return slices_of(rank.config, rank.memory, rank.rank, ours, rank.caches, "0.32")


@pytest.fixture(scope="module")
def fleet():
    fleet = Fleet()
    yield fleet
    fleet.engine.close()


def test_logits_are_the_same_on_other_ranks(fleet):
    for latent, case in [(False, PAIRS[2]), (False, PAIRS[4]), (True, PAIRS[2]), (True, PAIRS[4])]:
        assert fleet.farthest(latent, *case) <= 1e-5, (latent, case)


@pytest.mark.thorough
@pytest.mark.parametrize("apart", [False, True], ids=["blocks", "tokens"])
@pytest.mark.parametrize("latent", [False, True], ids=["grouped", "latent"])
@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_logits_are_the_same_on_any_ranks(fleet, monkeypatch, case, latent, apart):
    """In blocks that only an engine understands, and where tokens lie apart."""
    monkeypatch.setattr(sharded, "tokens_lie_apart", lambda _: apart)
    assert fleet.farthest(latent, *case) <= 1e-5


def other_heads(shard, memory, caches, **options):
    count = next(iter(memory.layers.values())).heads
    first = (shard.heads.start + len(shard.heads)) % count
    heads = range(first, first + len(shard.heads))
    return narrowed(dataclasses.replace(shard, heads=heads), memory, caches, **options)


def layer_behind(shard, memory, caches, **options):
    names = list(caches)
    layers = [names[(names.index(name) + 1) % len(names)] for name in shard.layers]
    return narrowed(dataclasses.replace(shard, layers=tuple(layers)), memory, caches, **options)


MUTANTS = [
    (other_heads, False, ((2, 1), (1, 1), (2, 1))),
    (other_heads, False, ((1, 1), (2, 1), (4, 1))),
    (layer_behind, False, ((1, 2), (1, 1), (1, 2))),
    (layer_behind, True, ((1, 2), (1, 1), (1, 2))),
    (layer_behind, False, ((2, 1), (1, 1), (2, 1))),
]


def test_wrong_heads_and_layers_are_seen_in_the_logits(fleet, monkeypatch):
    for mutant, latent, case in MUTANTS:
        with monkeypatch.context() as patch:

            def mutate(patch=patch, mutant=mutant):
                patch.setattr(sharded, "narrowed", mutant)

            assert fleet.farthest(latent, *case, between=mutate) > 1e-3, (mutant, latent, case)


def rank_of(number, tensor, pipeline, heads, layers, *, partition=None):
    """A rank of a model: its configuration, its memory and its place."""
    stage = number // tensor
    cuts = partition or cutting.boundaries(layers, pipeline)
    here = range(cuts[stage], cuts[stage + 1])
    replicas = max(1, tensor // heads)
    own = heads * replicas // tensor
    shape = LayerShape(own * 64, own, 4, 4)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_total_num_kv_heads=lambda: heads,
            get_total_num_hidden_layers=lambda: layers,
            get_layers_start_end_indices=lambda _: (here.start, here.stop),
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tensor, pipeline_parallel_size=pipeline
        ),
    )
    names = {f"model.layers.{layer}.attn": shape for layer in here}
    memory = Memory(1, 8, names, replicas)
    return config, memory, Rank(number, tensor * pipeline, replicas)


def where(shard, memory, rank, tensor):
    """Layers and heads of a shard, among the model's."""
    own = next(iter(memory.layers.values())).heads
    first = rank.number % tensor // memory.replicas * own
    layers = tuple(int(name.split(".")[2]) for name in shard.layers)
    return layers, tuple(first + head for head in shard.heads)


@given(data=st.data())
def test_a_shard_is_the_same_part_of_a_model_on_every_number_of_ranks(data):
    parts, per_part = data.draw(st.sampled_from([1, 2, 4, 6])), data.draw(st.integers(1, 3))
    heads, layers = parts * per_part, data.draw(st.integers(6, 40))
    stages = data.draw(st.sampled_from([1, 2, 4, 6]))
    wanted, places = ShardSettings(parts, stages), {}
    divisors = [number for number in range(1, 7) if parts % number == 0]
    for _ in range(2):
        tensor = data.draw(st.sampled_from([*divisors, 2 * heads] if per_part == 1 else divisors))
        usual = cutting.boundaries(layers, stages)
        pipeline = data.draw(st.sampled_from([1, stages]))
        seen = set()
        for number in range(tensor * pipeline):
            config, memory, rank = rank_of(number, tensor, pipeline, heads, layers)
            for shard in shards_of(config, memory, rank, wanted):
                place = where(shard, memory, rank, tensor)
                assert places.setdefault(shard.piece, place) == place
                seen.add(shard.piece.rank)
        assert seen == set(range(stages * parts))
        assert usual[-1] == layers
    every = [
        (layer, head) for many, several in places.values() for layer in many for head in several
    ]
    assert sorted(every) == [(layer, head) for layer in range(layers) for head in range(heads)]


def test_what_does_not_fit_or_cannot_be_told_is_refused():
    refused = [
        ((0, 1, 1, 4, 8), (3, 1), "4 KV head"),
        ((0, 4, 1, 4, 8), (2, 1), "tensor_parallel_size"),
        ((0, 1, 4, 4, 8), (1, 2), "pipeline_parallel_size"),
        ((0, 1, 1, 4, 8), (1, 9), "pipeline_parallel_size"),
        ((0, 1, 2, 4, 7), (1, 3), "pipeline_parallel_size"),
    ]
    for rank, wanted, why in refused:
        with pytest.raises(ConfigError, match=why):
            shards_of(*rank_of(*rank), ShardSettings(*wanted))
    config, memory, rank = rank_of(0, 1, 1, 4, 8)
    drafts = dataclasses.replace(memory, layers={**memory.layers, "draft.layers.8.attn": None})
    drafts.layers["draft.layers.8.attn"] = memory.layers["model.layers.0.attn"]
    with pytest.raises(ConfigError, match="draft"):
        shards_of(config, drafts, rank, ShardSettings())
    [_, shard] = shards_of(config, memory, rank, ShardSettings(2))
    strange = {name: torch.zeros(2, 4, 8, 8, 1) for name in memory.layers}
    with pytest.raises(ConfigError, match="separated"):
        narrowed(shard, memory, strange, apart=True)
    # Stages of one number with as many layers, which are not the same ones.
    usual, moved = rank_of(1, 1, 3, 4, 12), rank_of(1, 1, 3, 4, 12, partition=(0, 5, 9, 12))
    assert own_partition(usual[0], usual[2]) == {}
    assert own_partition(moved[0], moved[2]) == {"layers": "5 to 9 of 12"}
