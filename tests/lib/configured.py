"""Engines as a configuration builds them, for tests and for the processes that they start."""

import random

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import DType, KVLayout, Namespace, frame_bytes

CHUNK = 16
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=32)
FRAME = frame_bytes(LAYOUT.chunk_bytes(CHUNK))
NAMESPACE = Namespace("toy", LAYOUT)
PATIENT = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0, "close": 60.0}
"""Deadlines that no busy machine misses, where nothing is to hang."""
PROMPT = random.Random(7).choices(range(50_000), k=8 * CHUNK)


def built(root, *, slots=64, memory=True, budget=None, store="disk", more=None, **sections):
    """An engine over memory, unless not wanted, and the directory *root*, kept by *store*."""
    quick = {"failures": 2, "pause": 0.01, "longest_pause": 0.01}
    settings = {"root": str(root)} | (more or {})
    disk = {"store": store, "settings": settings, "budget": budget, "breaker": quick}
    tiers = [{"store": "memory"}, disk] if memory else [disk]
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": slots * FRAME}, "tiers": tiers}
    return build(load(None, {}, wanted | {"deadlines": PATIENT} | sections), NAMESPACE)


def settle(engine):
    """Wait until no worker has anything left to do: reads that nobody waits for go on, too."""
    for tier in engine._chunks.stack.tiers:
        for lane in tier.lanes:
            assert lane.drain(engine.admin._until(60.0)), f"{lane.name} hangs"


def prompt(number):
    """One of many prompts of different lengths; some begin alike."""
    tokens = random.Random(number).choices(range(50_000), k=(1 + number % 5) * CHUNK)
    return PROMPT[: number % 3 * CHUNK] + tokens


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def hit(engine, tokens=PROMPT):
    """Tokens that a retrieve brings, each checked to be right."""
    target = HeapKV(LAYOUT, len(tokens))
    got = engine.retrieve(tokens, target)
    assert target.agrees(computed(tokens), got.hit_tokens)
    return got.hit_tokens
