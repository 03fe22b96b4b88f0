"""One engine computes prompts at a node, another one goes on at another node: vLLM's schedulers."""

import random

import pytest
from vllm.v1.request import RequestStatus

from engines.vllm.vllm_toy import Toy, alone
from nodes import Node
from peers.pushing import DECODE, PREFILL, nodes
from processes import until

FRAME = 12_288
CHUNK = 32


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture
def machines(tmp_path):
    with nodes(tmp_path, Node, slots=512, memory=256, frame=FRAME) as machines:
        yield machines


@pytest.fixture
def pair(start, machines):
    """``pair(prefill={}, decode={})``: an engine at each node, and what it is told beside that."""

    def begin(prefill=None, decode=None, **both):
        return [
            start(
                node=node.path, connector={"wait_seconds": 60.0, **both, **(own or {})}, budget=48
            )
            for node, own in zip(machines, (prefill, decode), strict=True)
        ]

    return begin


def prefilled(toy, name, words, **hexkv):
    """What the engine that prefills has a router give to the one that decodes."""
    params = {"do_remote_decode": True, "do_remote_prefill": False}
    toy.add(name, words, count=1, params=params | ({"hexkv": hexkv} if hexkv else {}))
    toy.run(60)
    assert toy.answers()[name] == alone(words, 1)
    return toy.told[name]


def decoded(toy, name, words, params):
    toy.add(name, words, params=params)
    toy.run(60)
    assert toy.answers()[name] == alone(words, 4)
    return toy.cached[name]


def pins(node):
    return [owner for owner in node.served.health().pins if owner.startswith("shared")]


def keys(node):
    return set(node.served.stack.tiers[0].index.keys())


LENGTHS = [2, CHUNK - 1, CHUNK, CHUNK + 1, 100, 129, 200]


@pytest.mark.parametrize("way", ["pushed", "asked for", "by setting"])
def test_a_decoder_at_another_node_computes_one_token(pair, machines, way):
    _, there = machines
    setting = {"decode_node": DECODE} if way == "by setting" else {}
    prefill, decode = pair(prefill=setting)
    for length in LENGTHS:
        words, name = prompt(length, length), str(length)
        hexkv = {"decode_node": DECODE} if way == "pushed" else {}
        params = prefilled(prefill, name, words, **hexkv)
        assert params["hexkv"]["prefill_node"] == PREFILL
        assert decoded(decode, name, words, params) == length - 1
        assert way == "asked for" or not pins(machines[0]), "it is kept where it is needed"
    until(lambda: not pins(there))


def test_a_decoder_that_is_asked_early_waits_for_the_other_node(pair, machines):
    prefill, decode = pair(prefill={"hands_over": True}, decode={"takes_over": True})
    words = prompt(5, 200)
    prefill.add("p", words, count=1)
    prefill.step()
    until(lambda: len(machines[0].served.announced))  # another thread does it
    prefill.step()
    decode.add("d", words)
    for _ in range(20):
        decode._rest()
    assert decode.answers()["d"] == [], "it computes nothing meanwhile"
    prefill.run(60)
    decode.run(60)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 199


def gives_up(prefill):
    prefill.scheduler.finish_requests("p", RequestStatus.FINISHED_ABORTED)


@pytest.mark.parametrize("end", [gives_up, Toy.close], ids=["aborts", "dies"])
def test_a_decoder_at_another_node_computes_what_is_not_pushed(pair, machines, end):
    prefill, decode = pair(prefill={"hands_over": True, "decode_node": DECODE})
    words = prompt(5, 200)
    prefill.add("p", words, count=1)
    prefill.step()
    until(lambda: len(machines[1].served.announced))
    prefill.step()
    decode.add("d", words, params={"do_remote_prefill": True})
    for _ in range(20):
        decode._rest()
    end(prefill)
    decode.run(60)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 96, "what was pushed by then"
    until(lambda: not len(machines[1].served.announced))


def test_what_was_pushed_for_one_decoder_is_removed_when_it_has_it(pair, machines):
    _, there = machines
    prefill, decode = pair(remove_after_load=True)
    params = prefilled(prefill, "p", prompt(4, 150), decode_node=DECODE)
    assert decoded(decode, "d", prompt(4, 150), params) == 149
    until(lambda: not keys(there))
    assert not pins(there)


NAMES = [{"decode_node": "nobody"}, {"decode_node": PREFILL}, {"prefill_node": "nobody"}]


@pytest.mark.parametrize(
    "hexkv", [*NAMES, {"decode_node": 7}, {"prefill_node": "x" * 300}], ids=str
)
def test_whatever_nodes_are_named_the_answer_is_right(pair, hexkv):
    prefill, decode = pair()
    words = prompt(2, 77)
    gives = {"do_remote_decode": True, "do_remote_prefill": False, "hexkv": hexkv}
    prefill.add("p", words, count=1, params=gives)
    prefill.run(60)
    decoded(decode, "d", words, {"do_remote_prefill": True, "hexkv": hexkv})
