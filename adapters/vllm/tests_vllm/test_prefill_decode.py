"""One engine computes prompts, another one on the same node goes on: vLLM's own schedulers."""

import random

import pytest
from vllm.v1.request import RequestStatus

from engines.vllm.vllm_toy import BLOCK, Toy, alone
from nodes import Node
from processes import until

CHUNK = 32


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture
def node(tmp_path):
    with Node(tmp_path, slots=4096, memory=2048, disk=False) as node:
        yield node


@pytest.fixture
def pair(start, node):
    """``pair(**settings)``: an engine that prefills and one that decodes."""

    def begin(connector=None, **settings):
        return [
            start(node=node.path, connector={role: True, **(connector or {})}, **settings)
            for role in ("hands_over", "takes_over")
        ]

    return begin


LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 100, 127, 128, 129]


@pytest.mark.parametrize("budget", [256, 48], ids=["whole", "in parts"])
def test_the_decoder_computes_one_token_of_a_prompt_of_any_length(pair, budget):
    prefill, decode = pair(budget=budget)
    for length in LENGTHS:
        words, name = prompt(length, length), str(length)
        prefill.add(name, words, count=1)
        prefill.run(60)
        decode.add(name, words, count=20)
        decode.run(60)
        assert decode.answers()[name] == alone(words, 20)
        assert decode.cached[name] == length - 1


def test_what_stands_behind_a_prompt_is_no_part_of_a_longer_one(pair):
    """Its last block is stored before it is full; who goes on from there computes."""
    prefill, decode = pair()
    words = prompt(8, CHUNK + 4)
    prefill.add("short", words, count=1)
    prefill.run(60)
    for name, more in (("zeros", [0] * 60), ("other", prompt(9, 60))):
        decode.add(name, words + more)
        decode.run(60)
        assert decode.answers()[name] == alone(words + more, 4)
        assert decode.cached[name] == CHUNK


def steps(toy, count=20):
    for _ in range(count):
        toy._rest()


@pytest.fixture
def half_done(pair, node):
    """A prefiller in the middle of a prompt, and a decoder that was asked for it, too."""

    def begin(**settings):
        prefill, decode = pair(budget=48, **settings)
        words = prompt(5, 200)
        prefill.add("p", words, count=1)
        prefill.step()
        until(lambda: len(node.served.announced))  # another thread does it
        prefill.step()
        decode.add("d", words)
        steps(decode)
        return prefill, decode, words

    return begin


def test_a_decoder_waits_for_what_the_prefiller_computes(half_done, node):
    prefill, decode, words = half_done()
    assert decode.answers()["d"] == [], "it computes nothing meanwhile"
    tally = decode.worker._worker.half.tally
    counted, take = {}, tally.take
    tally.take = lambda: counted.update(told := take()) or told
    prefill.run(60)
    decode.run(60)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 199
    assert counted["waited_requests"] == 1
    assert counted["waited_seconds"] > 0
    assert not len(node.served.announced)


def gives_up(prefill):
    prefill.scheduler.finish_requests("p", RequestStatus.FINISHED_ABORTED)


@pytest.mark.parametrize("end", [gives_up, Toy.close], ids=["aborts", "dies"])
def test_a_decoder_computes_what_the_prefiller_did_not(half_done, node, end):
    prefill, decode, words = half_done(connector={"wait_seconds": 600.0})
    end(prefill)
    decode.run(60)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 96, "what was published by then"
    assert not len(node.served.announced)


def test_a_decoder_waits_no_longer_than_it_may(half_done):
    prefill, decode, words = half_done(connector={"wait_seconds": 0.5})
    decode.run(60)
    assert decode.answers()["d"] == alone(words, 4)
    assert decode.cached["d"] == 96
    prefill.run(60)
    check = prefill.answers()["p"]
    assert check == alone(words, 1)


def test_who_is_to_compute_a_prompt_does_not_wait_for_itself(start, node):
    """One engine may do both, for some requests each."""
    toy = start(node=node.path, connector={"hands_over": True, "takes_over": True}, budget=48)
    words = prompt(6, 200)
    for name in ("one", "two"):
        toy.add(name, words)
    toy.run(60)
    assert set(map(tuple, toy.answers().values())) == {tuple(alone(words, 4))}


@pytest.fixture
def routed(start, node):
    """Two engines that nobody has told what they are; only requests say so."""

    def begin(**settings):
        return [start(node=node.path, connector=settings, budget=48) for _ in range(2)]

    return begin


def prefilled(toy, name, words):
    """What the engine that prefills has a router give to the one that decodes."""
    toy.add(name, words, count=1, params={"do_remote_decode": True, "do_remote_prefill": False})
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


def test_what_a_router_passes_along_names_the_node_and_what_is_kept(routed, node):
    one, other = routed()
    words = prompt(1, 77)
    params = prefilled(one, "p", words)
    assert params["do_remote_prefill"] is True
    assert pins(node) == [f"shared {params['hexkv']['hold']} 0"]
    assert decoded(other, "d", words, params) == 76
    until(lambda: not pins(node))
    assert decoded(other, "again", words, params) == 76, "as often as it is asked"
    assert "d" not in other.told


MADE = [{"hold": "f" * 32}, {"node": "elsewhere"}, {"fresh": -7}, {"fresh": 2**62}, {"hold": "x"}]


@pytest.mark.parametrize("hexkv", [*MADE, {}, 7], ids=str)
def test_whatever_a_router_makes_of_it_the_answer_is_right(routed, node, hexkv):
    one, other = routed(remove_after_load=True)
    words = prompt(2, 77)
    params = prefilled(one, "p", words)
    made = params["hexkv"] | hexkv if hexkv and isinstance(hexkv, dict) else hexkv
    decoded(other, "d", words, params | {"hexkv": made, "remote_block_ids": [[7]]})
    decoded(other, "e", words, {"do_remote_prefill": True, "remote_request_id": "unknown"})
    other.add("d2", words, params=params)
    other.scheduler.finish_requests("d2", RequestStatus.FINISHED_ABORTED)
    other.run(60)
    until(lambda: not pins(node))


def test_what_was_made_for_one_decoder_is_removed_when_it_has_it(routed, node):
    one, other = routed(remove_after_load=True)
    shared = prompt(3, 85)
    one.add("before", shared, count=1)
    one.run(60)
    one.forget()
    kept = set(node.served.stack.tiers[0].index.keys())
    assert len(kept) == 3, "two chunks and a tail"
    words = shared + prompt(4, 50)
    params = prefilled(one, "p", words)
    assert params["hexkv"]["fresh"] == 64
    assert decoded(other, "d", words, params) == 134
    until(lambda: set(node.served.stack.tiers[0].index.keys()) == kept)
    assert not pins(node)


def test_what_is_kept_for_a_decoder_is_not_evicted_by_what_comes_later(start, tmp_path):
    with Node(tmp_path, slots=64, memory=24, frame=12_288, disk=False) as node:
        one, other = (start(node=node.path) for _ in range(2))
        words = prompt(1, 77)
        params = prefilled(one, "p", words)
        for number in range(20):
            one.add(str(number), prompt(100 + number, 90), count=1)
            one.run(60)
        assert decoded(other, "first", prompt(100, 90), {}) == 0, "it was evicted"
        assert decoded(other, "d", words, params) == 76
        one.close()
        other.close()


def test_a_hold_ends_with_its_time_or_with_a_decoder_that_gives_up(routed, node):
    one, other = routed(hold_seconds=30.0)
    params = prefilled(one, "p", prompt(5, 77))
    other.add("d", prompt(5, 77), params=params)
    other.scheduler.finish_requests("d", RequestStatus.FINISHED_ABORTED)
    until(lambda: not pins(node))
    prefilled(one, "p2", prompt(6, 77))
    seconds = node.served.health().pin_seconds
    assert 0 < max(seconds.values()) <= 30.0
    one.close()
    assert pins(node), "who prefills may die: its work stays for a while"
