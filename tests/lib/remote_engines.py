"""Engines as they are configured, over remote tiers: answers are right and in time, or they fail.

Nothing is tuned but how long callers wait: what an operator gets who sets nothing.
"""

from threading import Event

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, computed
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.waiting import UnderWay, promptly
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load

WAIT = 5.0
"""Seconds that a caller of the engine waits at most, and more than any answer takes."""

GRACE = 2.0
"""Seconds that a busy machine may add."""

RETURN = 30.0
"""Seconds after a server's return within which its tier is back."""


class ClockAhead(SystemClock):
    """The machine's time, and the seconds that a test adds."""

    ahead = 0.0

    def now(self):
        return super().now() + self.ahead


def engine_over(*tiers, wait=WAIT, clock=None):
    waits = {"lookup": wait, "retrieve": wait, "store": wait}
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "deadlines": waits}
    return build(load(None, {}, wanted | {"tiers": list(tiers)}), NAMESPACE, clock=clock)


def stored(engine, tokens):
    """The report of storing *tokens*, made in time."""
    data = computed(tokens)
    return promptly(lambda: engine.store(tokens, data), engine._deadlines.store + GRACE)


def kept(engine, tokens):
    """How many tokens are there after storing, said in time."""
    report = stored(engine, tokens)
    return report.stored_tokens + report.present_tokens


def got(engine, tokens):
    """How many tokens came back: right ones, in time."""
    target = HeapKV(LAYOUT, len(tokens))
    late = engine._deadlines.retrieve + GRACE
    hit = promptly(lambda: engine.retrieve(tokens, target), late).hit_tokens
    assert target.agrees(computed(tokens), hit)
    return hit


def comes_back(is_there):
    """Ask *is_there* again and again, as any caller would: the tier is to be there in time."""
    over = Event()

    def ask():
        while not is_there() and not over.wait(0.1):
            pass

    with UnderWay({"the tier": ask}, over.set, patience=60.0) as asking:
        assert not asking.late(RETURN), f"not back after {RETURN:.0f} s"
