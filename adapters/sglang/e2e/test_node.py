"""Real SGLang engines on one node: what one computed is there for the next, in memory."""

import pytest

from engines.sglang.sglang_engines import PAGE, PAGES, PATIENT, behind, prompt
from hexkv.contracts.chunk_cache._base import soon
from nodes import NodeProcess
from processes import until

pytestmark = pytest.mark.thorough


@pytest.fixture
def node(tmp_path):
    """A node of memory alone, in a pool of 128 MiB."""
    with NodeProcess(tmp_path, pool={"bytes": "128MiB"}, disk=False, memory=20_000) as node:
        yield node


def test_an_engine_hits_from_a_node_what_a_killed_one_stored(node, start, same):
    """Also when another process has taken the node's place."""
    config = {"node": str(node.path), "deadlines": PATIENT}
    client = node.client()

    def stored():
        (memory,) = client.health(soon()).tiers
        return memory.chunks == PAGES

    first = start(**behind("layer_first", **config))
    assert same(first, prompt("shared"))[0].cached == 0
    until(stored)
    first.kill()
    node.take_over()
    assert stored()
    second = start(**behind(**config))
    [answer] = same(second, prompt("shared"))
    assert answer.storage == PAGES * PAGE
    second.kill()
    client.close()
    node.at_rest()
