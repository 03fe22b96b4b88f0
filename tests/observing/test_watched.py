"""A real Prometheus watches an engine and its node, through traffic and faults.

A minute of the rules lasts a second. The same with a real vLLM is in its adapter's ``e2e``.
"""

import random
import shutil
import uuid

import pytest

from configured import CHUNK, LAYOUT, NAMESPACE, PATIENT
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from nodes import NodeProcess
from operating.watching import tiers, watched
from processes import held_port
from servers.redis_servers import RedisServer

pytestmark = pytest.mark.thorough


@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's prometheus")
def test_each_alert_that_should_fire_does_and_no_other(tmp_path):
    disk, folder = tmp_path / "disk", tmp_path / "prometheus"
    for made in (disk, folder, tmp_path / "redis", tmp_path / "node"):
        made.mkdir()
    places = {name: f"127.0.0.1:{held_port()}" for name in ("node", "vllm")}
    with (
        RedisServer(tmp_path / "redis") as redis,
        NodeProcess(
            tmp_path / "node",
            pool={"bytes": "256MiB"},
            tiers=tiers(disk, redis, f"{uuid.uuid4().hex}:"),
            observe={"address": places["node"]},
        ) as node,
    ):
        wanted = {
            "node": str(node.path),
            "chunk": {"size": CHUNK},
            "observe": {"address": places["vllm"]},
            "deadlines": PATIENT,
        }
        with build(load(None, {}, wanted), NAMESPACE) as engine:

            def ask(name):
                tokens = random.Random(name).choices(range(50_000), k=8 * CHUNK)
                window = HeapKV(LAYOUT, len(tokens))
                engine.retrieve(tokens, window)
                engine.store(tokens, window.compute(tokens), wait=False)

            watched(ask, node, redis, places, disk, folder, 1)
