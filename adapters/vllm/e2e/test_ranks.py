"""Two ranks, each with its own heads."""

import pytest

from engines.vllm.vllm_engines import prompt

pytestmark = pytest.mark.thorough

CHUNK = 64


@pytest.fixture(scope="module")
def engine(start, tmp_path_factory):
    root = tmp_path_factory.mktemp("ranks")
    disk = {"store": "disk", "settings": {"root": str(root)}}
    config = {"chunk": {"size": CHUNK}, "pool": {"bytes": "128MiB"}, "tiers": [disk]}
    return start(config, tensor_parallel_size=2, distributed_executor_backend="mp")


def test_ranks_keep_their_own_heads_and_load_them(engine, same):
    words = prompt("ranks", 700)
    assert same(engine, words) == [0]
    engine.flush()
    assert same(engine, words) == [10 * CHUNK]
