"""What goes wrong between two nodes if a part of it is left out, and that it is seen."""

import random

import pytest

from hexkv.adapters.vllm.requests import PAD, Tracked
from hexkv.adapters.vllm.saving import Saving
from hexkv.plugins.pushing import Pushing
from nodes import Node
from pushing import DECODE, nodes
from vllm_toy import alone

pytestmark = pytest.mark.thorough

GIVES = {"do_remote_decode": True, "hexkv": {"decode_node": DECODE}}


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture
def pair(start, tmp_path):
    """An engine that prefills, and one that decodes at another node, which is small."""
    with nodes(tmp_path, Node, slots=64, memory=24, frame=12_288) as machines:
        settings = {"wait_seconds": 60.0, "hold_seconds": 600.0}
        yield [start(node=node.path, connector=settings, budget=48) for node in machines]


def prefilled(toy, name, words):
    toy.add(name, words, count=1, params=GIVES)
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
    """What is stored at the decoder's node meanwhile does not evict what was pushed there."""
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
        prefill.forget()
        decode.forget()


def drops_the_tail(monkeypatch):
    before = Saving._store

    def store(self, save):
        whole = memoryview(save.tokens).cast("I")[-1] != PAD
        return before(self, save) if whole else None

    monkeypatch.setattr(Saving, "_store", store)


def lets_go_early(monkeypatch):
    monkeypatch.setattr(Pushing, "_hold", lambda self, keys, owner, seconds: None)


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
