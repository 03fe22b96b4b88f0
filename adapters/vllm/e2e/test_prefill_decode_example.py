"""The example of prefill and decode: two ``vllm serve``, a node and the proxy, as it is shown."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import openai
import pytest
import yaml

from engines.vllm.demo_proxy import ROUTER, demo, vllm_router
from engines.vllm.prefill_proxy import EXAMPLE, FLAGS, Proxy, answers_alone, quiet, same
from engines.vllm.vllm_engines import PATIENCE, PATIENT, connector, prompt
from engines.vllm.vllm_server import Server
from hexkv.contracts.chunk_cache._base import soon
from nodes import MEMORY, NodeProcess
from processes import until

pytestmark = pytest.mark.thorough

TOKENS = 600


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    root = tmp_path_factory.mktemp("node")
    with NodeProcess(root, pool={"bytes": "512MiB"}, disk=False, memory=100_000) as node:
        yield node


@pytest.fixture(scope="module")
def servers(node, model, tmp_path_factory):
    """One that prefills and one that decodes; nobody has told them so."""
    engine = yaml.safe_load((EXAMPLE / "engine.yaml").read_text())
    assert set(engine) == {"node"}
    transfer = json.dumps(connector(PATIENT | {"node": str(node.path)}, by_name=True))
    command = ["serve", str(model), *FLAGS, "--kv-transfer-config", transfer]
    with ExitStack() as started, ThreadPoolExecutor(2) as threads:
        folders = [tmp_path_factory.mktemp(name) for name in ("prefill", "decode")]
        for server in threads.map(partial(Server, command), folders):
            started.callback(server.kill)
            folders.append(server)
        yield folders[2:]


@pytest.fixture(scope="module")
def proxy(servers, tmp_path_factory):
    with Proxy(tmp_path_factory.mktemp("proxy"), *servers) as proxy:
        yield proxy


@pytest.fixture
def alone(servers, model):
    """What the server that decodes answers to prompts without the cache, each alone."""
    return partial(answers_alone, servers[1], model)


def test_answers_are_those_of_one_engine_and_decoders_compute_one_token(
    proxy, servers, model, alone
):
    prompts = [prompt(f"example {number}", TOKENS + number) for number in range(8)]
    expected = alone(*prompts)
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(lambda words: proxy.ask(model, words), prompts))
    for answer, want in zip(answers, expected, strict=True):
        # What the prefiller had of it: vLLM passes that along, and says it in place of its own.
        assert same(answer, want) == 0
    found = servers[1].metrics()
    assert found["vllm:external_prefix_cache_hits_total"] == sum(map(len, prompts))
    assert not found.get("vllm:hexkv_failed_tokens_total")
    assert servers[0].metrics()["vllm:generation_tokens_total"] == len(prompts)


def test_answers_are_streamed_and_a_client_may_hang_up(proxy, servers, node, model, alone):
    words = prompt("streamed", TOKENS)
    [expected] = alone(words)
    parts = [part.choices[0].text for part in proxy.ask(model, words, stream=True)]
    assert len(parts) > 1
    assert "".join(parts) == expected.choices[0].text
    with proxy.ask(model, prompt("long", TOKENS), tokens=3000, stream=True) as stream:
        next(iter(stream))
    for server in servers:
        until(partial(quiet, server))
    client = node.client()
    until(lambda: set(client.health(soon()).leases) <= {MEMORY})
    client.close()


@pytest.mark.parametrize("router", [demo, vllm_router])
def test_behind_routers_of_others_decoders_compute_one_token(
    router, servers, node, model, alone, tmp_path
):
    """Whole answers and streams, 16 at once, of lengths around the borders of blocks."""
    if router is vllm_router and not ROUTER.exists():
        pytest.skip("make routers installs it")
    lengths = [32 * (1 + place // 4) + place % 4 - 1 for place in range(16)]
    prompts = [prompt(f"{router.__name__} {length}", length) for length in lengths]
    expected = alone(*prompts)
    hits = "vllm:external_prefix_cache_hits_total"
    prefill, decode = servers
    before = decode.metrics()[hits], prefill.metrics()["vllm:generation_tokens_total"]
    log = tmp_path / "router.log"
    with (
        router(prefill.url, decode.url, log) as url,
        openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
        ) as client,
        ThreadPoolExecutor(len(prompts)) as clients,
    ):
        ask = partial(
            client.completions.create, model=str(model), max_tokens=8, temperature=0.0, logprobs=1,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        answers = list(clients.map(lambda words: ask(prompt=words), prompts))
        streamed = [part.choices[0].text for part in ask(prompt=prompts[0], stream=True)]
    for answer, want in zip(answers, expected, strict=True):
        same(answer, want)
    assert "".join(streamed) == expected[0].choices[0].text
    after = decode.metrics()[hits], prefill.metrics()["vllm:generation_tokens_total"]
    assert after[0] - before[0] == sum(lengths) + lengths[0]
    assert after[1] - before[1] == len(prompts) + 1
    client = node.client()
    until(lambda: set(client.health(soon()).leases) <= {MEMORY})
    assert not client.health(soon()).pins
    client.close()


def test_what_is_wrong_with_a_request_is_said_by_a_server(proxy, model):
    with pytest.raises(openai.BadRequestError):
        proxy.ask(model, prompt("too long", 5000))
    with pytest.raises(openai.NotFoundError):
        proxy.ask("another model", prompt("model", 10))
    assert [found.id for found in proxy.client.models.list()] == [str(model)]


def test_without_a_prefiller_decoders_compute_themselves(proxy, servers, model, alone):
    prefill, decode = servers
    words = prompt("after its death", TOKENS)
    under_way = [prompt(f"under way {number}", TOKENS) for number in range(3)]
    expected = alone(words, *under_way)
    with ThreadPoolExecutor(len(under_way)) as clients:
        asked = [clients.submit(proxy.ask, model, words) for words in under_way]
        until(lambda: not quiet(prefill) or all(one.done() for one in asked))
        prefill.kill()
        for one, want in zip(asked, expected[1:], strict=True):
            same(one.result(PATIENCE), want)
    same(proxy.ask(model, words), expected[0])
    until(partial(quiet, decode))
    assert not decode.said("AssertionError")


def test_without_any_server_a_request_is_refused(proxy, servers, model):
    with suppress(ProcessLookupError):
        servers[1].kill()
    with pytest.raises(openai.InternalServerError):
        proxy.ask(model, prompt("nobody", TOKENS))
