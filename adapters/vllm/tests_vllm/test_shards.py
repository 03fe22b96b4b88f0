"""Engines with other numbers of ranks on one node: vLLM's own schedulers, several workers each."""

import dataclasses
import random
from threading import Event

import pytest

from engines.vllm.vllm_ranks import RankedToy, Ranks
from engines.vllm.vllm_toy import alone
from hexkv.adapters.vllm.configuration.shards import narrowed
from hexkv.adapters.vllm.worker import sharded
from hexkv.contracts.chunk_cache._base import soon
from hexkv.ports import ConfigError
from nodes import Node
from peers.pushing import DECODE, nodes
from processes import until

CHUNK = 32


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture
def node(tmp_path):
    with Node(tmp_path, slots=4096, memory=4096, disk=False) as node:
        yield node


@pytest.fixture
def pair(start, node):
    """``pair(before, behind, shards)``: an engine that prefills and one that decodes."""

    def begin(before, behind, shards, **settings):
        connector = {"shards": shards} | settings.pop("connector", {})
        return [
            start(
                toy=RankedToy,
                node=node.path,
                connector={role: True} | connector,
                ranks=ranks,
                **settings,
            )
            for role, ranks in (("hands_over", before), ("takes_over", behind))
        ]

    return begin


PAIRS = {
    "4 to 2": (Ranks(4), Ranks(2), {"heads": 4}),
    "2 to 4": (Ranks(2), Ranks(4), {"heads": 4}),
    "2 to 1": (Ranks(2), Ranks(1), {"heads": 2}),
    "1 to 2": (Ranks(1), Ranks(2), {"heads": 2}),
    "stages 2 to 1": (Ranks(1, 2), Ranks(1), {"layers": 2}),
    "stages 1 to 2": (Ranks(1), Ranks(1, 2), {"layers": 2}),
    "2x2 to 1": (Ranks(2, 2), Ranks(1), {"heads": 2, "layers": 2}),
    "4 ranks to 2 stages": (Ranks(4), Ranks(1, 2), {"heads": 4, "layers": 2}),
}


def handed_over(prefill, decode, seed, length):
    """One prompt is computed by the one and gone on with by the other; how much was loaded."""
    words, name = prompt(seed, length), f"{seed} {length}"
    prefill.add(name, words, count=1)
    prefill.run(300)
    assert prefill.answers()[name] == alone(words, 1)
    decode.add(name, words, count=8)
    decode.run(300)
    assert decode.answers()[name] == alone(words, 8)
    return decode.cached[name]


@pytest.mark.parametrize(
    "case",
    [
        case if case == "2 to 1" else pytest.param(case, marks=pytest.mark.thorough)
        for case in PAIRS
    ],
)
def test_a_decoder_with_other_ranks_computes_one_token_of_a_prompt(pair, node, case):
    before, behind, shards = PAIRS[case]
    prefill, decode = pair(before, behind, shards)
    for length in (1, CHUNK, CHUNK + 1, 100):
        assert handed_over(prefill, decode, length, length) == length - 1
    until(lambda: not node.served.health().pins)


LATENT = {
    "2 to 1": (Ranks(2), Ranks(1)),
    "1 to 4": (Ranks(1), Ranks(4)),
    "4 to 2": (Ranks(4), Ranks(2)),
    "2 to 4": (Ranks(2), Ranks(4)),
    "stages 2 to 1": (Ranks(1, 2), Ranks(1)),
    "2x2 to 2": (Ranks(2, 2), Ranks(2)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", LATENT)
def test_latent_attention_is_cut_by_layers_alone(pair, case):
    before, behind = LATENT[case]
    prefill, decode = pair(before, behind, {"layers": 2}, latent=True)
    assert handed_over(prefill, decode, 1, 100) == 99


def other_head(shard, memory, caches, **options):
    """A mutant: the heads beside those of the shard."""
    count = next(iter(memory.layers.values())).heads
    turned = (shard.heads.start + len(shard.heads)) % count
    heads = range(turned, turned + len(shard.heads))
    return narrowed(dataclasses.replace(shard, heads=heads), memory, caches, **options)


def next_layer(shard, memory, caches, **options):
    """A mutant: each layer of the shard is taken for the one before it."""
    names = list(caches)
    layers = tuple(names[(names.index(name) + 1) % len(names)] for name in shard.layers)
    return narrowed(dataclasses.replace(shard, layers=layers), memory, caches, **options)


WRONG = [(other_head, "2 to 1"), (next_layer, "2 to 1"), (next_layer, "stages 2 to 1")]


@pytest.mark.thorough
@pytest.mark.parametrize(("mutant", "case"), WRONG)
def test_the_toy_notices_wrong_heads_and_layers(pair, monkeypatch, mutant, case):
    before, behind, shards = PAIRS[case]
    prefill, decode = pair(before, behind, shards)
    assert handed_over(prefill, decode, 1, 100) == 99
    monkeypatch.setattr(sharded, "narrowed", mutant)
    _, wrong = pair(before, behind, shards)
    notices(wrong, prompt(1, 100))


def notices(wrong, words, params=None):
    """All of a prompt is found by a decoder that puts it into wrong places."""
    wrong.add("wrong", words, count=8, params=params)
    wrong.run(300)
    assert wrong.cached["wrong"] == len(words) - 1, "it is found"
    assert wrong.answers()["wrong"] != alone(words, 8), "and is wrong"


def test_ranks_that_are_cut_share_with_those_that_are_what_the_cut_says(pair):
    """The stored form is that of as many ranks: the same keys, the same bytes."""
    prefill, _ = pair(Ranks(2), Ranks(1), None)
    _, decode = pair(Ranks(2), Ranks(1), {"heads": 2})
    assert handed_over(prefill, decode, 1, 100) == 99


def test_other_cuts_have_other_names(pair):
    prefill, _ = pair(Ranks(2), Ranks(1), {"heads": 2})
    _, decode = pair(Ranks(2), Ranks(1), {"heads": 4})
    assert handed_over(prefill, decode, 1, 100) == 0
    _, whole = pair(Ranks(2), Ranks(1), None)
    assert handed_over(prefill, whole, 2, 100) == 0


@pytest.mark.parametrize("ranks", [(Ranks(2), Ranks(1)), (Ranks(1), Ranks(2))], ids=str)
def test_each_shard_is_kept_until_its_rank_has_it(pair, node, ranks):
    by_request = {"hands_over": None, "takes_over": None}
    prefill, decode = pair(
        *ranks, {"heads": 2}, connector={"remove_after_load": True, **by_request}
    )
    shared = prompt(3, 85)
    prefill.add("before", shared, count=1)
    prefill.run(300)
    prefill.forget()
    kept = set(node.served.stack.tiers[0].index.keys())
    assert len(kept) == 2 * 3, "of each shard two chunks and a tail"
    words = shared + prompt(4, 50)
    prefill.add("p", words, count=1, params={"do_remote_decode": True})
    prefill.run(300)
    params = prefill.told["p"]
    hold = params["hexkv"]["hold"]
    pins = [owner for owner in node.served.health().pins if owner.startswith("shared")]
    assert sorted(pins) == [f"shared {hold} 0", f"shared {hold} 1"]
    decode.add("d", words, params=params)
    decode.run(300)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 134
    until(lambda: not node.served.health().pins)
    until(lambda: set(node.served.stack.tiers[0].index.keys()) == kept)


def test_what_ranks_have_in_common_is_not_removed_while_one_of_them_lacks_it(pair):
    """Nobody of them knows which one is the last to have it, so it goes when it is evicted."""
    by_request = {"hands_over": None, "takes_over": None, "remove_after_load": True}
    prefill, decode = pair(Ranks(1), Ranks(2), None, latent=True, connector=by_request)
    words = prompt(5, 100)
    prefill.add("p", words, count=1, params={"do_remote_decode": True})
    prefill.run(300)
    first, second = (worker._worker.half for worker in decode.worker.workers)
    done, let_go, read = Event(), first._handed_over.loaded, second._read

    def lets_go(*args):
        let_go(*args)
        done.set()

    def late(*args):
        assert done.wait(60)
        return read(*args)

    first._handed_over.loaded, second._read = lets_go, late
    decode.add("d", words, params=prefill.told["p"])
    decode.run(300)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 99


@pytest.fixture
def machines(tmp_path):
    with nodes(tmp_path, Node, slots=512, memory=256, frame=2 * CHUNK * 1024) as machines:
        yield machines


@pytest.fixture
def pushed(start, machines):
    """``pushed(words, ranks, shards)``: what was pushed for the engine that it starts there."""

    def begin(words, ranks, shards):
        connector = {"shards": shards, "wait_seconds": 60.0}

        def at(node, ranks):
            settings = {"connector": connector, "ranks": ranks, "budget": 48}
            return start(toy=RankedToy, node=node.path, **settings)

        prefill = at(machines[0], ranks[0])
        params = {"do_remote_decode": True, "hexkv": {"decode_node": DECODE}}
        prefill.add("p", words, count=1, params=params)
        prefill.run(300)
        return prefill.told["p"], lambda: at(machines[1], ranks[1])

    return begin


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [(Ranks(2), Ranks(1)), (Ranks(1), Ranks(2))], ids=str)
def test_shards_are_pushed_to_the_node_of_a_decoder_with_other_ranks(pushed, machines, ranks):
    words = prompt(1, 100)
    params, begin = pushed(words, ranks, {"heads": 2})
    decode = begin()
    decode.add("d", words, params=params)
    decode.run(300)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 99
    for node in machines:
        until(lambda node=node: not node.served.health().pins)


@pytest.mark.thorough
@pytest.mark.parametrize(("mutant", "case"), WRONG)
def test_the_toy_notices_wrong_heads_and_layers_of_what_was_pushed(
    pushed, monkeypatch, mutant, case
):
    *ranks, shards = PAIRS[case]
    words = prompt(1, 100)
    params, begin = pushed(words, ranks, shards)
    monkeypatch.setattr(sharded, "narrowed", mutant)
    notices(begin(), words, params)


@pytest.mark.thorough
@pytest.mark.parametrize("loading", ["sync", "async", "layerwise"])
@pytest.mark.parametrize("lost", range(4))
def test_a_prompt_of_which_one_shard_is_missing_is_computed(pair, node, loading, lost):
    connector = {"loading": loading, "hands_over": False, "takes_over": False}
    shards = {"heads": 2, "layers": 2}
    prefill, decode = pair(Ranks(2, 2), Ranks(1), shards, connector=connector)
    words = prompt(1, 4 * CHUNK + 1)
    prefill.add("p", words)
    prefill.run(300)
    prefill.flush()
    decode.add("d", words)
    decode.run(300)
    assert decode.cached["d"] == 4 * CHUNK
    decode.forget()
    part = prefill.engines[lost]
    gone = part.chunk_keys(words)[2]
    assert part.chunks.forget([gone], soon()) == 1
    decode.add("e", words)
    decode.run(300)
    assert decode.cached["e"] == 2 * CHUNK
    assert decode.answers()["e"] == alone(words, 4)


@pytest.mark.thorough
@pytest.mark.parametrize("loading", ["sync", "async", "layerwise"])
def test_what_is_lost_between_a_lookup_and_its_load_is_computed(pair, node, loading, monkeypatch):
    connector = {"loading": loading, "hands_over": False, "takes_over": False}
    prefill, decode = pair(Ranks(2), Ranks(1), {"heads": 2}, connector=connector)
    words = prompt(1, 4 * CHUNK + 1)
    prefill.add("p", words)
    prefill.run(300)
    prefill.flush()
    gone = prefill.engines[1].chunk_keys(words)[2]
    chunks = prefill.engines[1].chunks
    # Found, but nobody prefetches it, and then it is gone.
    monkeypatch.setattr(sharded.ShardedCache, "prefetch", lambda *_, **__: 0)
    monkeypatch.setattr(
        sharded.ShardedCache,
        "lookup",
        forgetting(sharded.ShardedCache.lookup, lambda: chunks.forget([gone], soon())),
    )
    decode.add("d", words)
    decode.run(300)
    assert decode.answers()["d"] == alone(words, 4)


def forgetting(lookup, forget):
    def looked_up(*args, **named):
        found = lookup(*args, **named)
        forget()
        return found

    return looked_up


REFUSED = {
    "3 heads": (Ranks(1), {"heads": 3}, "4 KV head"),
    "too few parts": (Ranks(2), {"heads": 1}, "multiple of every tensor_parallel_size"),
    "too many layers": (Ranks(1), {"layers": 9}, "whole parts of 9"),
    "stages": (Ranks(1, 4), {"layers": 2}, "multiple of every pipeline_parallel_size"),
    "unknown": (Ranks(1), {"head": 2}, "shards.head "),
    "none": (Ranks(1), {"heads": 0}, "shards"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", REFUSED)
def test_a_cut_that_does_not_fit_the_ranks_is_refused(pair, case):
    ranks, shards, why = REFUSED[case]
    with pytest.raises(ConfigError, match=why):
        pair(ranks, ranks, shards)
