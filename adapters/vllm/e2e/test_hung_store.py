"""A store that hangs while KV is written to it: no step of a real vLLM waits for it."""

import uuid

import pytest

from engines.vllm.vllm_engines import PATIENCE, PATIENT, prompt
from processes import until

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 10 * CHUNK + 9


def test_steps_go_on_while_a_store_hangs_and_it_gets_all_of_it_afterwards(
    start, same, redis_server
):
    redis = {"url": redis_server.url, "prefix": f"{uuid.uuid4().hex}:"}
    tiers = [{"store": "memory"}, {"store": "redis", "settings": redis, "read": False}]
    deadlines = PATIENT["deadlines"] | {"store": PATIENCE}
    engine = start(
        {"chunk": {"size": CHUNK}, "pool": {"bytes": "128MiB"}, "tiers": tiers},
        options={"deadlines": deadlines},
        env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},  # saves are beside the steps, as in a server
    )
    prompts = [prompt(f"hangs {number}", TOKENS) for number in range(3)]
    redis_server.freeze()
    try:
        for words in prompts:
            assert same(engine, words) == [0]
        assert same(engine, *prompts) == [10 * CHUNK] * len(prompts), "from memory"
    finally:
        redis_server.thaw()
    with redis_server.admin() as admin:
        # No write had ended before, by its deadline either.
        until(lambda: admin.dbsize() == len(prompts) * (TOKENS // CHUNK))
