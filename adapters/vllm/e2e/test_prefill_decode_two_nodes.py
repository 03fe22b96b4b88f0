"""Two ``vllm serve``, each with a node of its own, and the example's proxy before them."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial

import pytest

from engines.vllm.prefill_proxy import FLAGS, Proxy, answers_alone, quiet, same
from engines.vllm.vllm_engines import PATIENT, connector, prompt
from engines.vllm.vllm_server import Server
from hexkv.contracts.chunk_cache._base import soon
from nodes import MEMORY, NodeProcess
from peers.pushing import DECODE, nodes
from processes import until

pytestmark = pytest.mark.thorough

TOKENS = 600
HOLD = 20.0


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    root = tmp_path_factory.mktemp("nodes")
    pool = {"bytes": "512MiB", "provider": "shared"}
    with nodes(root, NodeProcess, memory=100_000, pool=pool) as machines:
        yield machines


@pytest.fixture(scope="module")
def servers(machines, model, tmp_path_factory):
    """One that prefills and one that decodes, with nothing in common but the nodes' link."""

    def begin(node):
        own = {"node": str(node.path), "hold_seconds": HOLD}
        transfer = json.dumps(connector(PATIENT | own, by_name=True))
        folder = tmp_path_factory.mktemp("server")
        steps = ["--max-num-batched-tokens", "256"]
        command = ["serve", str(model), *FLAGS, *steps, "--kv-transfer-config", transfer]
        return Server(command, folder)

    with ExitStack() as started, ThreadPoolExecutor(2) as threads:
        found = list(threads.map(begin, machines))
        for server in found:
            started.callback(server.kill)
        yield found


@pytest.fixture(scope="module", params=["pushed", "asked for"])
def proxy(request, servers, tmp_path_factory):
    named = ["--decode-node", DECODE] if request.param == "pushed" else []
    with Proxy(tmp_path_factory.mktemp("proxy"), *servers, *named) as proxy:
        yield proxy


def at_rest(node):
    """Whether nobody has anything of it any more."""
    with closing(node.client()) as client:
        told = client.health(soon())
        return told is not None and set(told.leases) <= {MEMORY} and not told.pins


def test_a_decoder_with_a_node_of_its_own_computes_one_token(proxy, servers, machines, model):
    prompts = [prompt(f"{proxy.port} {number}", TOKENS + number) for number in range(6)]
    expected = answers_alone(servers[1], model, *prompts)
    before = servers[1].metrics().get("vllm:external_prefix_cache_hits_total", 0)
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(partial(proxy.ask, model), prompts))
    for answer, want in zip(answers, expected, strict=True):
        assert same(answer, want) == 0
    found = servers[1].metrics()
    assert found["vllm:external_prefix_cache_hits_total"] - before == sum(map(len, prompts))
    assert not found.get("vllm:hexkv_failed_tokens_total")
    for node in machines:
        until(partial(at_rest, node))


def test_answers_are_right_without_the_prefillers_node(proxy, servers, machines, model):
    words = [prompt(f"alone {proxy.port} {number}", TOKENS) for number in range(4)]
    expected = answers_alone(servers[1], model, *words)
    with ThreadPoolExecutor(len(words)) as clients:
        asked = [clients.submit(proxy.ask, model, one) for one in words]
        until(lambda: not quiet(servers[0]) or all(one.done() for one in asked))
        machines[0].kill()
        for one, want in zip(asked, expected, strict=True):
            same(one.result(), want)
    for server in servers:
        until(partial(quiet, server))
        assert not server.said("AssertionError")
    machines[0].start()
    until(partial(at_rest, machines[1]))
