"""Clearing an engine over Redis: its chunks are gone, another model's stay, and that is said."""

import random

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import DType, KVLayout, Namespace

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)
PROMPT = random.Random(4).choices(range(50_000), k=1024)


def kv():
    return HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)


@pytest.fixture
def engine(valkey, prefix, keys):
    """Opens engines over memory and one Valkey, each of another model."""
    opened = []

    def engine(model):
        redis = {"store": "redis", "settings": {"url": valkey.url, "prefix": prefix}}
        tiers = [{"store": "memory"}, redis]
        settings = load(overrides={"pool": {"bytes": 1 << 24}, "tiers": tiers})
        opened.append(build(settings, Namespace(model, LAYOUT)))
        return opened[-1]

    yield engine
    for one in opened:
        one.close()


def served(engine):
    window = HeapKV(LAYOUT, len(PROMPT))
    hit = engine.retrieve(PROMPT, window).hit_tokens
    assert hit == engine.lookup(PROMPT).hit_tokens
    assert window.agrees(kv(), hit)
    return hit


@pytest.mark.parametrize("restarted", [False, True])
def test_after_a_clear_nothing_of_the_model_is_found_and_everything_of_others(engine, restarted):
    ours, theirs = engine("ours"), engine("theirs")
    for one in (ours, theirs):
        one.store(PROMPT, kv())
        assert one.flush()
    if restarted:
        ours.close()
        ours = engine("ours")
    cleared = ours.clear()
    assert cleared.complete
    assert cleared.tiers["redis"] == cleared.chunks == 4
    assert served(ours) == served(engine("ours")) == 0
    assert served(theirs) == served(engine("theirs")) == len(PROMPT)
    ours.store(PROMPT, kv())
    assert served(ours) == len(PROMPT)


def test_a_clear_of_everything_takes_every_model_s_chunks_of_this_store(engine, keys):
    ours, theirs = engine("ours"), engine("theirs")
    for one in (ours, theirs):
        one.store(PROMPT, kv())
        assert one.flush()
    assert len(keys.keys()) == 8
    assert ours.clear(everything=True).complete
    assert keys.keys() == set()
    assert served(engine("theirs")) == 0
