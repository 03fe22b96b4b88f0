"""A Redis that is stopped, not dead, under ``vllm serve``: nobody else waits for it."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.vllm.vllm_engines import PATIENT, connector, prompt
from engines.vllm.vllm_server import Server

pytestmark = pytest.mark.thorough

TOKENS = 3 * 256 + 40


@pytest.fixture
def server(model, redis_server, tmp_path):
    """Configured as on the page, but for deadlines that no busy machine misses."""
    redis = {"url": redis_server.url, "prefix": f"{uuid.uuid4().hex}:"}
    tiers = [{"store": "memory"}, {"store": "redis", "settings": redis}]
    transfer = connector(PATIENT | {"pool": {"bytes": "256MiB"}, "tiers": tiers}, by_name=True)
    flags = ["--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching"]
    flags += ["--kv-transfer-config", json.dumps(transfer)]
    with Server(["serve", str(model), *flags], tmp_path) as server:
        yield server


def test_others_are_served_while_a_redis_hangs_and_the_server_ends(
    server, redis_server, model, reference
):
    def answer(words):
        [choice] = server.complete(str(model), words).choices
        return choice.text.split() == [f"w{token}" for token in reference(words)[0].tokens]

    prompts = [prompt(f"client {n}", TOKENS) for n in range(2)]
    short = prompt("no chunk of it", 100)
    reference(short, *prompts)
    assert answer(short)
    with ThreadPoolExecutor() as clients:
        redis_server.freeze()
        try:
            waiting = clients.submit(answer, prompts[0])
            assert all(answer(short) for _ in range(3))
            # For a minute it waits for Redis; had anybody waited with it, it would be over.
            assert not waiting.done()
        finally:
            redis_server.thaw()
        assert waiting.result()
        redis_server.freeze()
        clients.submit(server.complete, str(model), prompts[1])
        assert answer(short)
        server.stop()
        redis_server.thaw()
