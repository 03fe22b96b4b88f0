"""Two real engines of unequal parallelism: what the one prefills the other one decodes."""

import pytest

from engines.vllm.vllm_engines import Engine, Reference, prompt
from nodes import NodeProcess

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 10 * CHUNK + 17

TWO = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}

IN_TORCH = {"compilation_config": {"custom_ops": ["none"]}, "attention_backend": "CPU_MLA"}
"""As for ranks that hold the same KV: vLLM 0.32's own kernel rotates keys of latent attention by
the number of ranks."""

CUTS = {"tiny_llama": {"heads": 2}, "tiny_latent": {"layers": 2}}
"""Grouped queries with two of four KV heads on each of two ranks; one latent head on both."""


@pytest.fixture(scope="module", params=CUTS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind, built):
    return built(kind)


@pytest.fixture(scope="module")
def same(model, tmp_path_factory):
    with Engine(model, tmp_path_factory.mktemp("reference") / "log", **IN_TORCH) as engine:
        yield Reference(engine).same


@pytest.fixture(scope="module")
def pair(model, kind, start, tmp_path_factory):
    """An engine of two ranks and one of one rank, both of which hand over and take over."""
    root = tmp_path_factory.mktemp("node")
    with NodeProcess(root, pool={"bytes": "256MiB"}, disk=False, memory=20_000) as node:
        config = {"chunk": {"size": CHUNK}, "node": str(node.path), "shards": CUTS[kind]}
        config |= {"hands_over": True, "takes_over": True}
        yield start(config, **IN_TORCH, **TWO), start(config, **IN_TORCH)


@pytest.mark.parametrize("way", ["two to one", "one to two"])
def test_a_prompt_is_prefilled_by_as_many_ranks_and_decoded_by_others(pair, same, way):
    """To log probabilities within 1e-5 of an engine of one rank without a connector."""
    prefill, decode = pair if way == "two to one" else reversed(pair)
    words = prompt(way, TOKENS)
    assert same(prefill, words) == [0]
    prefill.flush()
    assert same(decode, words) == [TOKENS]
