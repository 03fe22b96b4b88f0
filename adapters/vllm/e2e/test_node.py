"""Two real vLLM engines on one node: what one computed the other one hits, from memory."""

import pytest

from engines.vllm.vllm_engines import prompt
from hexkv.contracts.chunk_cache._base import soon
from nodes import NodeProcess
from processes import until

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 10 * CHUNK + 9
HIT = 10 * CHUNK


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node of memory alone, in a pool of 128 MiB."""
    root = tmp_path_factory.mktemp("node")
    with NodeProcess(root, pool={"bytes": "128MiB"}, disk=False, memory=20_000) as node:
        yield node


@pytest.fixture(scope="module")
def config(node):
    return {"chunk": {"size": CHUNK}, "node": str(node.path)}


@pytest.fixture(scope="module")
def first(start, config, same):
    engine = start(config)
    assert same(engine, prompt("shared", TOKENS)) == [0]
    engine.flush()
    return engine


@pytest.fixture(scope="module")
def second(start, config, first):
    return start(config, options={"loading": "async", "async_lookup": True})


def test_the_second_engine_hits_what_the_first_one_computed(second, same):
    assert same(second, prompt("shared", TOKENS)) == [HIT]


def test_an_engine_that_was_killed_leaves_its_chunks_and_no_lease(node, first, second, same):
    first.kill()
    assert same(second, prompt("shared", TOKENS), prompt("new", TOKENS)) == [HIT, 0]
    client = node.client()
    until(lambda: set(client.health(soon()).leases) <= {"memory store"})
    client.close()


def test_an_engine_that_was_killed_hits_from_memory_as_soon_as_it_is_there_again(
    first, start, config, same
):
    with start(config) as again:
        assert same(again, prompt("shared", TOKENS)) == [HIT]


def test_an_engine_does_not_notice_that_its_node_is_taken_over(node, second, same):
    """Each hit is one from memory, for the node has nothing else."""
    words = prompt("new", TOKENS)
    node.take_over()
    assert same(second, words, prompt("shared", TOKENS)) == [HIT, HIT]


def test_a_node_that_is_killed_costs_hits_only_and_a_new_one_is_used(node, second, same):
    words = prompt("new", TOKENS)
    node.kill()
    assert same(second, words) == [0]
    node.start()

    def hit():
        cached = same(second, words)
        second.ask("flush", seconds=10.0)  # in vain while the node was not found yet
        return cached == [HIT]

    until(hit)
