"""A real Prometheus watches a real vLLM and its node, through traffic and faults; and their traces.

A minute of the rules lasts two seconds, and a day forty minutes of these. ``WATCHED_MINUTE``
says otherwise.
"""

import json
import os
import shutil
import uuid
from urllib.request import Request, urlopen

import pytest

from engines.vllm.vllm_engines import PATIENT, connector, prompt
from engines.vllm.vllm_server import Server
from nodes import NodeProcess
from operating.collectors import PARENT, SPAN, TRACE, collecting
from operating.watching import tiers, watched
from processes import held_port, until
from servers.redis_servers import RedisServer

pytestmark = pytest.mark.thorough

CHUNK = 128
TOKENS = 5 * CHUNK + 9
MINUTE = int(os.environ.get("WATCHED_MINUTE", "2"))


@pytest.fixture(scope="module")
def collector():
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def places():
    return {name: f"127.0.0.1:{held_port()}" for name in ("node", "vllm")}


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def node(tmp_path_factory, redis, places, disk):
    """Memory, a disk and Redis, whose breaker stays open for as long as the test lasts."""
    given = tiers(disk, redis, f"{uuid.uuid4().hex}:")
    root, pool = tmp_path_factory.mktemp("node"), {"bytes": "512MiB"}
    observe = {"address": places["node"]}
    with NodeProcess(root, pool=pool, tiers=given, observe=observe) as node:
        yield node


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, node, places, collector):
    """vLLM over the node, which traces its requests and tells hexkv of their parents."""
    observe = {"address": places["vllm"], "traces": collector.url}
    config = {"chunk": {"size": CHUNK}, "node": str(node.path), "observe": observe}
    transfer = connector(PATIENT | config, by_name=True)
    flags = ["--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching"]
    flags += ["--max-model-len", "4096", "--otlp-traces-endpoint", collector.url]
    flags += ["--kv-transfer-config", json.dumps(transfer)]
    otlp = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    folder = tmp_path_factory.mktemp("server")
    with Server(["serve", str(model), *flags], folder, **otlp) as server:
        yield server


def test_what_hexkv_did_for_a_request_is_below_its_own_span(server, model, collector, node):
    body = {"model": str(model), "prompt": prompt("traced", TOKENS), "max_tokens": 2}
    said = {"Content-Type": "application/json", "traceparent": PARENT}
    for _ in range(2):
        asked = Request(f"{server.url}/v1/completions", json.dumps(body).encode(), said)
        with urlopen(asked, timeout=600) as answer:
            assert answer.status == 200
    until(lambda: collector.of("hexkv.read"))
    until(lambda: collector.of("llm_request"))
    mine = [span for span in collector.spans if span.scope == "hexkv"]
    calls = [span for span in mine if span.name != "hexkv.read"]
    assert (
        {span.trace for span in mine} == {TRACE} == {s.trace for s in collector.of("llm_request")}
    )
    assert {span.parent for span in calls} == {SPAN}
    assert {span.name for span in calls} == {"hexkv.lookup", "hexkv.retrieve", "hexkv.store"}
    (loaded,) = collector.of("hexkv.retrieve")
    assert loaded.said["gen_ai.usage.cache_read.input_tokens"] == 5 * CHUNK
    assert [read.said["hexkv.tier"] for read in collector.of("hexkv.read")] == ["memory"]


@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's prometheus")
def test_each_alert_that_should_fire_does_and_no_other(
    server, model, node, redis, places, disk, tmp_path
):
    def ask(name):
        server.complete(str(model), prompt(name, TOKENS), tokens=1)

    watched(ask, node, redis, places, disk, tmp_path, MINUTE)
