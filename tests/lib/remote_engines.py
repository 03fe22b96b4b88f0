"""Engines as they are configured, over remote tiers: answers are right and in time, or they fail.

Nothing is tuned but how long callers wait: what an operator gets who sets nothing.
"""

import time
from contextlib import contextmanager
from threading import Event, Thread

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, computed
from hexkv.contracts.heap_kv import HeapKV
from hexkv.plugins.compose import build
from hexkv.plugins.config import load

WAIT = 5.0
"""Seconds that a caller of the engine waits at most, and more than any answer takes."""

GRACE = 2.0
"""Seconds that a busy machine may add."""

RETURN = 30.0
"""Seconds after a server's return within which its tier is back."""


class OwnTime:
    """Seconds in which this process was let run, from the beginning of a block on.

    A thread looks at the clock many times a second. Where it comes to that only after a while,
    the machine had something else to do, and most of that while does not count.
    """

    TICK, MOST = 0.02, 0.1

    def __init__(self):
        self.seconds = 0.0
        self._over = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def _look(self):
        before = time.monotonic()
        while not self._over.wait(self.TICK):
            now = time.monotonic()
            self.seconds += min(now - before, self.MOST)
            before = now

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@contextmanager
def within(seconds, late):
    """Fail if a block takes longer, of the time in which this process was let run."""
    with OwnTime() as own:
        yield
    assert own.seconds < seconds, f"{late}: {own.seconds:.1f} s"


def engine_over(*tiers, wait=WAIT):
    waits = {"lookup": wait, "retrieve": wait, "store": wait}
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "deadlines": waits}
    return build(load(None, {}, wanted | {"tiers": list(tiers)}), NAMESPACE)


def stored(engine, tokens):
    """The report of storing *tokens*, made in time."""
    data = computed(tokens)
    with within(engine._deadlines.store + GRACE, "stored late"):
        return engine.store(tokens, data)


def kept(engine, tokens):
    """How many tokens are there after storing, said in time."""
    report = stored(engine, tokens)
    return report.stored_tokens + report.present_tokens


def got(engine, tokens):
    """How many tokens came back: right ones, in time."""
    target = HeapKV(LAYOUT, len(tokens))
    with within(engine._deadlines.retrieve + GRACE, "retrieved late"):
        hit = engine.retrieve(tokens, target).hit_tokens
    assert target.agrees(computed(tokens), hit)
    return hit
