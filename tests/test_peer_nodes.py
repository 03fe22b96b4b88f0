"""Nodes as peers: the node serves and reads, and its engines know nothing of it."""

import random
from contextlib import ExitStack

import pytest

from directory_servers import SECRET, DirectoryProcess
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS
from hexkv.contracts.heap_kv import HeapKV
from nodes import FRAME, Node, NodeProcess
from peering import directory_at, directory_of, eventually, free_address
from processes import free_port

PROMPT = random.Random(5).choices(range(50_000), k=4 * TOKENS)


def hit(engine):
    """Tokens that a retrieve brings, each checked to be right."""
    target = HeapKV(LAYOUT, len(PROMPT))
    got = engine.retrieve(PROMPT, target).hit_tokens
    assert target.agrees(HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT), got)
    return got


def sections(directory, place, **settings):
    """Of a node of memory that serves at *place*, and reads from others."""
    return {
        "tiers": [{"store": "memory", "budget": 12 * FRAME}, {"store": "peers"}],
        "directory": directory,
        "peers": {"channel": "tcp", "settings": settings | {"listen": place}},
    }


def test_what_one_node_holds_engines_of_another_one_hit(tmp_path):
    places = free_address(), free_address()
    with ExitStack() as opened:
        nodes = [
            opened.enter_context(
                Node(tmp_path, **sections(directory_of(other) | {"name": own}, own))
            )
            for own, other in (places, places[::-1])
        ]
        first, second = (opened.enter_context(node.engine()) for node in nodes)
        first.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
        eventually(lambda: hit(second) == len(PROMPT))


@pytest.mark.thorough
@pytest.mark.parametrize("fixed", [False, True])
def test_a_node_that_is_taken_over_is_read_at_its_new_port(tmp_path, fixed):
    """At a fixed port its successor cannot listen, while the node has it: the node goes on."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with ExitStack() as opened:
        served = opened.enter_context(DirectoryProcess("--secret-file", str(secret)))
        place = f"127.0.0.1:{free_port() if fixed else 0}"
        wanted = sections(directory_at(served) | {"name": "node"}, place)
        node = opened.enter_context(NodeProcess(tmp_path, **wanted))
        engine = opened.enter_context(node.engine())
        engine.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
        other = sections(directory_at(served) | {"name": "other"}, "127.0.0.1:0")
        other["tiers"] = [{"store": "memory", "promote": False}, {"store": "peers"}]
        reader = opened.enter_context(opened.enter_context(Node(tmp_path, **other)).engine())
        eventually(lambda: hit(reader) == len(PROMPT))
        if fixed:
            successor = node.begin("--take-over")
            assert successor.wait(60) != 0
        else:
            node.take_over()
        eventually(lambda: hit(reader) == len(PROMPT))
        assert hit(engine) == len(PROMPT)
