"""Engines as they are configured, over remote tiers: answers are right and in time, or they fail.

Nothing is tuned but how long callers wait: what an operator gets who sets nothing.
"""

import time

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, computed
from hexkv.contracts.heap_kv import HeapKV
from hexkv.plugins.compose import build
from hexkv.plugins.config import load

WAIT = 0.5
"""Seconds that a caller of the engine waits at most."""

GRACE = 2.0
"""Seconds that a busy machine may add."""

RETURN = 30.0
"""Seconds after a server's return within which its tier is back."""


def engine_over(*tiers):
    waits = {"lookup": WAIT, "retrieve": WAIT, "store": WAIT}
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "deadlines": waits}
    return build(load(None, {}, wanted | {"tiers": list(tiers)}), NAMESPACE)


def stored(engine, tokens):
    """The report of storing *tokens*, made in time."""
    data = computed(tokens)
    start = time.monotonic()
    report = engine.store(tokens, data)
    assert time.monotonic() - start < WAIT + GRACE
    return report


def kept(engine, tokens):
    """How many tokens are there after storing, said in time."""
    report = stored(engine, tokens)
    return report.stored_tokens + report.present_tokens


def got(engine, tokens):
    """How many tokens came back: right ones, in time."""
    target = HeapKV(LAYOUT, len(tokens))
    start = time.monotonic()
    hit = engine.retrieve(tokens, target).hit_tokens
    assert time.monotonic() - start < WAIT + GRACE
    assert target.agrees(computed(tokens), hit)
    return hit
