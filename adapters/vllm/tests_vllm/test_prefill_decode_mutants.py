"""What goes wrong over one node, and over two, if a part of it is left out: it is seen."""

import random
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from engines.vllm.vllm_toy import Toy, alone
from hexkv.adapters.vllm.scheduler.requests import PAD, Tracked
from hexkv.adapters.vllm.worker.handed_over import HandedOver
from hexkv.adapters.vllm.worker.saving import Saving
from hexkv.peers.pushing.pushing import Pushing
from nodes import Node
from peers.pushing import DECODE, nodes

pytestmark = pytest.mark.thorough

GIVES = {
    "one node": {"do_remote_decode": True},
    "two nodes": {"do_remote_decode": True, "hexkv": {"decode_node": DECODE}},
}
SMALL = {"slots": 64, "memory": 24, "frame": 12_288}


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


class Prefill(NamedTuple):
    """An engine that prefills, and what a router says to it."""

    toy: Toy
    gives: dict


@pytest.fixture(params=GIVES)
def pair(request, start, tmp_path):
    """An engine that prefills, and one that decodes at the same small node, or at another one."""
    with ExitStack() as opened:
        if request.param == "one node":
            machines = [opened.enter_context(Node(tmp_path, disk=False, **SMALL))] * 2
        else:
            machines = opened.enter_context(nodes(tmp_path, Node, **SMALL))
        settings = {"wait_seconds": 60.0, "hold_seconds": 600.0}
        prefill, decode = (
            start(node=node.path, connector=settings, budget=48) for node in machines
        )
        yield Prefill(prefill, GIVES[request.param]), decode


def prefilled(prefill, name, words):
    toy = prefill.toy
    toy.add(name, words, count=1, params=prefill.gives)
    toy.run(60)
    return toy.told[name]


def decoded(toy, name, words, params):
    """Tokens that were cached of a prompt whose answer is right."""
    toy.cached.pop(name, None)
    toy.add(name, words, params=params)
    toy.run(60)
    assert toy.answers()[name] == alone(words, 4)
    return toy.cached[name]


def keeps_the_tail(prefill, decode):
    """Of a prompt that ends within a block, one token is computed."""
    words = prompt(1, 77)
    assert decoded(decode, "d", words, prefilled(prefill, "p", words)) == 76


def keeps_what_is_held(prefill, decode):
    """What is stored at the decoder's node meanwhile does not evict what is kept there."""
    words = prompt(2, 77)
    prefilled(prefill, "p", words)
    # Nobody says which node has it, so it is not pushed again; and the hold is not ended.
    params = {"do_remote_prefill": True}
    assert decoded(decode, "early", words, params) == 76
    decode.forget()
    for number in range(20):
        decode.add(str(number), prompt(100 + number, 90), count=1)
        decode.run(60)
    decode.forget()
    assert decoded(decode, "d", words, params) == 76


def believes_no_name(prefill, decode):
    """A request that is called as an earlier one gets its own prompt's KV."""
    for seed in (3, 4):
        words = prompt(seed, 77)
        params = prefilled(prefill, "same", words)
        assert decoded(decode, "same", words, params | {"remote_request_id": "same"}) == 76
        prefill.toy.forget()
        decode.forget()


def drops_the_tail(monkeypatch):
    before = Saving._store

    def store(self, pending, namespace):
        whole = memoryview(pending.save.tokens).cast("I")[-1] != PAD
        return before(self, pending, namespace) if whole else None

    monkeypatch.setattr(Saving, "_store", store)


def lets_go_early(monkeypatch):
    monkeypatch.setattr(Pushing, "_hold", lambda self, keys, owner, seconds: None)
    monkeypatch.setattr(HandedOver, "_keep", lambda self, prompt: None)


def loads_by_name(monkeypatch):
    before, known = Tracked.load, {}

    def load(self, external, chunk):
        made = before(self, external, chunk)
        return known.setdefault(made.request, made)

    monkeypatch.setattr(Tracked, "load", load)


CASES = [
    (keeps_the_tail, drops_the_tail),
    (keeps_what_is_held, lets_go_early),
    (believes_no_name, loads_by_name),
]


@pytest.mark.parametrize(("promise", "mutant"), CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "broken"])
def test_a_broken_half_is_seen(pair, monkeypatch, promise, mutant, broken):
    if not broken:
        promise(*pair)
        return
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        promise(*pair)
