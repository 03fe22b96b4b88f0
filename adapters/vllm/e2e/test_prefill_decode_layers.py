"""Layers that a real vLLM stores, and its node pushes, while it computes the later ones."""

from contextlib import closing
from functools import partial

import pytest

from engines.vllm.vllm_engines import Engine, Reference, prompt
from hexkv.contracts.chunk_cache._base import soon
from nodes import MEMORY, NodeProcess
from peers.pushing import DECODE, nodes
from processes import until

pytestmark = pytest.mark.thorough

CHUNK, PARTS = 64, 4
LENGTHS = [CHUNK - 1, CHUNK, 5 * CHUNK + 17, 10 * CHUNK + 1]
IN_TORCH = {"compilation_config": {"custom_ops": ["none"]}, "attention_backend": "CPU_MLA"}
"""As for ranks that hold the same KV: vLLM's own kernel rotates latent keys otherwise."""

SHARDS = {"tiny_llama": {"heads": 2, "layers": PARTS}, "tiny_latent": {"layers": PARTS}}
CASES = [("tiny_llama", 128), ("tiny_llama", 4096), ("tiny_latent", 4096)]
"""Models, and the tokens of a step. With latent attention vLLM's kernels for CPUs cannot compute
more than one token behind others that were there before, so it takes prompts whole."""


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def kind(case):
    return case[0]


@pytest.fixture(scope="module")
def model(kind, built):
    return built(kind)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    root = tmp_path_factory.mktemp("nodes")
    pool = {"bytes": "256MiB", "provider": "shared"}
    with nodes(root, NodeProcess, memory=20_000, pool=pool) as machines:
        yield machines


@pytest.fixture(scope="module")
def same(model, tmp_path_factory):
    with Engine(model, tmp_path_factory.mktemp("reference") / "log", **IN_TORCH) as engine:
        yield Reference(engine).same


@pytest.fixture(scope="module")
def decode(kind, start, machines):
    config = {"chunk": {"size": CHUNK}, "node": str(machines[1].path), "shards": SHARDS[kind]}
    return start(config, options={"takes_over": True}, **IN_TORCH)


@pytest.fixture(scope="module")
def prefill(case, start, machines):
    kind, budget = case
    config = {"chunk": {"size": CHUNK}, "node": str(machines[0].path), "shards": SHARDS[kind]}
    hands = {"hands_over": True, "decode_node": DECODE, "storing": "layerwise"}
    engine = start(config, options=hands, **IN_TORCH, max_num_batched_tokens=budget)
    engine.watch_layers()
    yield engine
    engine.close()


def at_rest(node):
    """Whether nobody has anything of it any more, but for what waits for a decoder."""
    with closing(node.client()) as client:
        told = client.health(soon())
        return told is not None and set(told.leases) <= {MEMORY}


def test_a_decoder_goes_on_from_layers_that_were_pushed_while_others_were_computed(
    prefill, decode, machines, same
):
    for length in LENGTHS:
        words = prompt(f"{prefill.log} {length}", length)
        before = len(prefill.layers())
        assert same(prefill, words) == [0]
        [*prefills] = prefill.layers()[before:]
        # What ends with a step is stored part by part: each with the last of its layers.
        stored = [begun for begun in prefills if begun[-1]]
        assert stored
        for begun in stored:
            each, layers = begun[-1] // PARTS, len(begun)
            assert begun == [(layer + 1) * PARTS // layers * each for layer in range(layers)]
        assert same(decode, words) == [length]
    for node in machines:
        until(partial(at_rest, node))


def test_many_at_once_are_handed_over_right(prefill, decode, same):
    prompts = [prompt(f"{prefill.log} at once {i}", 40 + 31 * i) for i in range(12)]
    assert same(prefill, *prompts) == [0] * len(prompts)
    assert same(decode, *prompts) == list(map(len, prompts))
