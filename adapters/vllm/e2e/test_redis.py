"""Hits from a Redis that engines share, and a Redis that dies under a running engine."""

import uuid

import pytest

from engines.vllm.vllm_engines import prompt
from processes import until

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 10 * CHUNK + 9


@pytest.fixture(scope="module")
def config(redis_server):
    tier = {
        "store": "redis",
        "settings": {"url": redis_server.url, "prefix": f"{uuid.uuid4().hex}:"},
        "breaker": {"pause": 0.1, "longest_pause": 0.2},
    }
    return {"chunk": {"size": CHUNK}, "pool": {"bytes": "128MiB"}, "tiers": [tier]}


@pytest.fixture(scope="module")
def stored(start, same, redis_server, config):
    """An engine stored two prompts and was killed."""
    engine = start(config)
    same(engine, prompt("shared", TOKENS), prompt("unlucky", TOKENS))
    engine.flush()
    with redis_server.admin() as admin:
        assert admin.dbsize() == 2 * (TOKENS // CHUNK)
    engine.kill()


@pytest.fixture(scope="module")
def engine(start, config, stored):
    """Loads between steps, not before the one that needs it."""
    return start(config, options={"loading": "async", "async_lookup": True})


def test_another_engine_loads_from_redis_what_a_killed_one_stored(engine, same):
    assert same(engine, prompt("shared", TOKENS)) == [10 * CHUNK]


def test_a_dead_redis_costs_hits_only_and_a_new_one_is_used_again(engine, same, redis_server):
    words = prompt("unlucky", TOKENS)
    redis_server.kill()
    for _ in range(3):
        same(engine, words)
    redis_server.start()

    def found():
        [cached] = same(engine, words)
        engine.flush()  # what was computed, for the next time
        return cached == 10 * CHUNK

    until(found)
