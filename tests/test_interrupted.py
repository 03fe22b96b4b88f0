"""An exception out of nowhere, at any line of the core, leaves nothing behind.

Each call is made again and again, and a ``KeyboardInterrupt`` comes at each line that it runs,
where it runs it for the first time and for the last; in ``make test`` at each twentieth of these.
"""

import time
from contextlib import suppress
from threading import Event
from unittest.mock import Mock

import pytest
from stepping import (
    CALLS,
    TAILS,
    TOKENS,
    Interrupt,
    first_visits,
    kv,
    retrieve,
    retrieve_layers,
    store,
    store_layers,
)

from depth import thorough
from dict_store import ScanningStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from layered import Ranged, memory
from rigging import CHUNK, LAYOUT, MEMORY, PATIENCE, tier

BY_LAYERS = (store_layers, retrieve_layers)
"""Without a worker that copies: with one there is all that these do, and more."""

OTHER = list(range(1_000, 1_000 + CHUNK))


def unharmed(r):
    """Everything is given back, and the engine works as before."""
    engine = r.engine
    engine.cancel("a")
    assert engine.store(OTHER, kv(OTHER)).dropped_tokens == 0
    target = HeapKV(LAYOUT, len(OTHER))
    assert engine.retrieve(OTHER, target).hit_tokens == len(OTHER)
    assert target.agrees(kv(OTHER), len(OTHER))
    assert engine.flush()
    for place in r.tiers.values():
        assert place.drain(engine.admin._until(30))
    engine.clear(OTHER)
    kept = engine.health().tiers[0].chunks if "memory" in r.tiers else 0
    expected = {MEMORY: kept} if kept else {}
    # A read that was interrupted on its way into the lane runs unlisted: no drain waits for it.
    end, pause = time.monotonic() + PATIENCE, Event()
    while r.pool.ledger() != expected and time.monotonic() < end:
        pause.wait(0.001)
    health = engine.health()
    assert dict(health.leases) == expected
    assert (health.pins, health.prefetches) == ({}, 0)
    assert not engine._calls._owners
    assert not engine._requests.copier.late
    assert not engine._requests.copier.begun
    assert r.pool.held_bytes == kept * r.pool.slot_bytes
    for place in r.tiers.values():
        assert not (place.index.decides and place.index._reserved)
        assert not (place.index.decides and place.index._leaving)


@pytest.mark.parametrize(
    ("call", "tiers", "step"),
    [
        *((call, "both", 20) for call in CALLS if call not in BY_LAYERS),
        *thorough(*((call, "both", 1) for call in CALLS)),
        *thorough(*((call, "memory", 1) for call in (store, retrieve))),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else getattr(value, "__name__", f"by {value}")
    ),
)
@pytest.mark.usefixtures("one_by_one")
def test_an_interrupt_at_any_line_leaves_nothing_behind(rig, call, tiers, step):
    ranged = call.__name__.startswith("retrieve_layers")
    slow = tier("slow", Ranged() if ranged else ScanningStore({}))
    r = rig([memory()] if tiers == "memory" else [memory(), slow], slots=16, chunker=TAILS)
    assert r.engine.flush()

    def made(interrupt):
        if "store" in call.__name__:
            r.engine.clear(TOKENS)
        else:
            r.engine.store(TOKENS, kv(TOKENS))
            if tiers == "both":
                r.engine.clear(TOKENS, tiers=["memory"])
        with suppress(KeyboardInterrupt), interrupt:
            call(r.engine)
        return interrupt

    made(Interrupt())
    lines = made(Interrupt()).lines
    last = {where: number for number, where in enumerate(lines)}
    interrupted = 0
    for number in sorted({*first_visits(lines), *last.values()})[::step]:
        interrupt = made(Interrupt(number))
        interrupted += interrupt.where is not None
        try:
            unharmed(r)
        except BaseException as error:
            error.add_note(f"after an interrupt at line {number} of the call: {interrupt.where}")
            raise
    assert interrupted > 100 / step
    target = HeapKV(LAYOUT, len(TOKENS))
    r.engine.store(TOKENS, kv(TOKENS))
    assert r.engine.retrieve(TOKENS, target).hit_tokens == len(TOKENS)
    assert target.agrees(kv(TOKENS), len(TOKENS))


class Slow(HeapKV):
    """A device whose copies go on after the wait for them was interrupted."""

    done = False
    spans = ()
    """Of all copies: a store queues the next one before it waits."""

    def scatter(self, spans, layers=None):
        super().scatter(spans, layers)
        self.spans = [*self.spans, *spans]
        return self

    gather = scatter

    def wait(self, deadline):
        if not self.done:
            raise KeyboardInterrupt
        return True


@pytest.mark.parametrize("call", ["retrieve", "store"])
def test_an_interrupted_wait_for_a_copy_frees_no_memory_that_the_copy_uses(rig, call):
    r = rig([tier("slow", ScanningStore({}))], slots=4, chunker=TAILS)
    if call == "retrieve":
        r.engine.store(TOKENS, kv(TOKENS))
    device = Slow(LAYOUT, len(TOKENS))
    with pytest.raises(KeyboardInterrupt):
        getattr(r.engine, call)(TOKENS, device)
    device.wait = lambda deadline: False
    r.engine.lookup(TOKENS)
    health = r.engine.health()
    assert dict(health.leases) == {"late copy": len(device.spans)}
    assert device.spans
    device.wait = lambda deadline: True
    r.engine.lookup(TOKENS)
    assert r.at_rest()
    # Nor does one that waits for several copies, at the first of them.
    device, copier, lease = Slow(LAYOUT, 0), r.engine._requests.copier, Mock()
    copies = [copier.begin(device, [], [lease], gather=False) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        copier.finish_all(copies, r.engine.admin._until(1))
    assert (lease.share.call_count, len(copier.late)) == (2, 2)
    device.done = True
