"""Ranks that hold the same KV: one writes it; all read it from a node, or get what one reads."""

import pytest

from engines.vllm.vllm_engines import Engine, Reference, prompt
from hexkv.contracts.chunk_cache._base import soon
from nodes import NodeProcess

pytestmark = pytest.mark.thorough

CHUNK = 64
CHUNKS = 10
TOKENS = CHUNKS * CHUNK + 1
"""One beyond the last chunk: with latent attention vLLM's kernels for CPUs cannot compute more than
one token behind others that were there before."""

TWO = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}

IN_TORCH = {"compilation_config": {"custom_ops": ["none"]}, "attention_backend": "CPU_MLA"}
"""vLLM 0.32's own kernel for CPUs rotates keys of latent attention wrongly: what comes out depends
on the number of ranks. PyTorch's operations give what transformers gives. And its kernel for AMX,
which it takes where a processor has that, packs no weights of 32 bits; other models ignore it."""


@pytest.fixture(scope="module", params=["tiny_latent", "tiny_one_head"])
def model(request, built):
    return built(request.param)


@pytest.fixture(scope="module")
def same(model, tmp_path_factory):
    with Engine(model, tmp_path_factory.mktemp("reference") / "log", **IN_TORCH) as engine:
        yield Reference(engine).same


@pytest.fixture(scope="module")
def node(model, tmp_path_factory):
    with NodeProcess(
        tmp_path_factory.mktemp("node"), pool={"bytes": "256MiB"}, disk=False, memory=20_000
    ) as node:
        yield node


@pytest.fixture(scope="module")
def config(node):
    return {"chunk": {"size": CHUNK}, "node": str(node.path)}


@pytest.fixture(scope="module")
def ranks(start, config):
    return start(config, **IN_TORCH, **TWO)


def kept(node):
    """How many chunks the node has."""
    client = node.client()
    try:
        [memory] = client.health(soon()).tiers
        return memory.chunks
    finally:
        client.close()


def test_two_ranks_keep_one_copy_and_both_load_it(ranks, node, same):
    words = prompt("replicated", TOKENS)
    assert same(ranks, words) == [0]
    ranks.flush()
    assert kept(node) == CHUNKS
    assert same(ranks, words) == [CHUNKS * CHUNK]
    assert kept(node) == CHUNKS


def test_an_engine_of_one_rank_hits_what_two_ranks_stored_and_the_other_way(
    ranks, start, config, node, same
):
    words, more = prompt("replicated", TOKENS), prompt("alone", TOKENS)
    with start(config, **IN_TORCH) as alone:
        assert same(alone, words) == [CHUNKS * CHUNK]
        assert same(alone, more) == [0]
        alone.flush()
    assert kept(node) == 2 * CHUNKS
    assert same(ranks, more) == [CHUNKS * CHUNK]


def test_ranks_without_a_node_load_together_what_one_of_them_keeps(start, model, same):
    """Each rank has memory of its own, in which only the first one has anything."""
    config = {"chunk": {"size": CHUNK}, "pool": {"bytes": "64MiB"}}
    loading = "sync" if "latent" in model.name else "async"
    together = {"collective": "gloo", "collective_seconds": 60.0, "loading": loading}
    engine = start(config, options=together, **IN_TORCH, **TWO)
    words, more = prompt("together", TOKENS), prompt("one by one", TOKENS)
    assert same(engine, words) == [0]
    assert same(engine, words, more) == [CHUNKS * CHUNK, 0]
    assert same(engine, more, words) == [CHUNKS * CHUNK] * 2
    moved = engine.metrics()  # summed over ranks
    assert moved["vllm:hexkv_stored_tokens_total"] == 2 * CHUNKS * CHUNK
    assert moved["vllm:hexkv_loaded_tokens_total"] == 2 * 3 * CHUNKS * CHUNK
    assert not engine.said("each loads alone")
    engine.close()
