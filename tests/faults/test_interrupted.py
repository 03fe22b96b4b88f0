"""An exception out of nowhere, at any line of the core, leaves nothing behind.

Each call is made again and again, and a ``KeyboardInterrupt`` comes at each line that it runs,
where it runs it for the first time and for the last; in ``make test`` at each twentieth of these.
"""

import time
from contextlib import suppress
from functools import partial
from itertools import product
from threading import Event
from unittest.mock import patch

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
from engines.sglang.linked_streams import address
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.memory.copying import LOST
from hexkv.core.memory.pipelining import Pipelining
from layered import Ranged, memory
from rigging import CHUNK, LAYOUT, MEMORY, PATIENCE, tier

BY_LAYERS = (store_layers, retrieve_layers)
"""Without a worker that copies: with one there is all that these do, and more."""

OTHER = list(range(1_000, 1_000 + CHUNK))
LONG = list(range(6 * CHUNK + 12))


def unharmed(r):
    """Everything is given back, and the engine works as before."""
    engine = r.engine
    engine.cancel("a")
    r.clock.advance(LOST)
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
    r.engine._first._least, r.engine._first.longer = 1, CHUNK
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


class Late(HeapKV):
    """A device whose copies end with the second wait for each, or when the test ends them."""

    def __init__(self, pool):
        super().__init__(LAYOUT, len(LONG))
        self.pool = pool
        self.copies = []
        self.unleased = []
        """Spans whose memory had come free before their copy ended."""

    def scatter(self, spans, layers=None):
        return LateCopy(self, partial(super().scatter, spans, layers), spans)

    def gather(self, spans, layers=None):
        return LateCopy(self, partial(super().gather, spans, layers), spans)

    def end(self):
        while self.copies:
            self.copies[0].end()


class LateCopy:
    waits = 0
    """How often it was waited for."""

    def __init__(self, device, move, spans):
        self.device, self.move, self.spans = device, move, spans
        device.copies.append(self)

    def wait(self, deadline):
        self.waits += 1
        if self.move is not None and self.waits > 1:
            self.end()
        return self.move is None

    def end(self):
        ledger = self.device.pool._ledger
        start, places = address(ledger.memory), ledger.places()
        for span in self.spans:
            at = address(span.data) - start
            if not any(begin <= at < begin + size for begin, (size, _) in places.items()):
                self.device.unleased.append(span[:2])
        self.move()
        self.move = self.spans = None
        self.device.copies.remove(self)


def by_layers(call, done):
    with call as layers:
        for layer in range(LAYOUT.layers):
            done(layers, layer)
        return layers.result()


LOADS = {
    "at once": lambda engine, device: engine.retrieve(LONG, device),
    "prefetched": lambda engine, device: (
        engine.prefetch("a", LONG),
        engine.retrieve(LONG, device, lookup_id="a"),
    ),
    "by layers": lambda engine, device: by_layers(
        engine.retrieve_layers(LONG, device), lambda layers, _: next(layers)
    ),
}
STORES = {
    "at once": lambda engine, device: engine.store(LONG, device),
    "later": lambda engine, device: engine.store(LONG, device, wait=False),
    "by layers": lambda engine, device: by_layers(
        engine.store_layers(LONG, device), lambda layers, layer: layers.layer_done(layer)
    ),
}


@pytest.mark.parametrize(
    ("calls", "step"),
    [(LOADS, 300), (STORES, 300), *thorough((LOADS, 3), (STORES, 3))],
    ids=["loads by 300", "stores by 300", "loads by 3", "stores by 3"],
)
@pytest.mark.usefixtures("one_by_one")
def test_an_interrupt_at_any_line_frees_no_memory_that_a_copy_uses(rig, calls, step):
    r = rig([memory(), tier("slow", Ranged())], slots=24, chunker=TAILS)
    engine, right = r.engine, HeapKV(LAYOUT, len(LONG)).compute(LONG)
    engine._requests.pace.fixed = Pipelining(2, 4, 2)  # so a next copy is queued ahead

    def made(call, interrupt, waits):
        engine.clear(LONG)
        if calls is LOADS:
            engine.store(LONG, right)
            engine.clear(LONG, tiers=["memory"])
        device = Late(r.pool)
        device.memory = device.memory if calls is LOADS else right.memory
        with suppress(KeyboardInterrupt), interrupt, patch.object(LateCopy, "waits", waits):
            call(engine, device)
        device.end()
        assert device.unleased == []
        return interrupt

    for (name, call), waits in product(calls.items(), (0, 1)):
        made(call, Interrupt(), waits)
        lines = made(call, Interrupt(), waits).lines
        last = {where: number for number, where in enumerate(lines)}
        for number in sorted({*first_visits(lines), *last.values()})[::step]:
            interrupt = Interrupt(number)
            try:
                made(call, interrupt, waits)
                engine.cancel("a")
                target = HeapKV(LAYOUT, len(LONG))
                assert target.agrees(right, engine.retrieve(LONG, target).hit_tokens)
                unharmed(r)
            except BaseException as error:
                error.add_note(f"{name}: after an interrupt at line {number}: {interrupt.where}")
                raise

    def interrupted(self, spans, layers=None):
        gather(self, spans, layers)
        raise KeyboardInterrupt

    # In the device, too: no transfer tells the end of what it has queued.
    gather = Late.gather
    if calls is STORES:
        with patch.object(Late, "gather", interrupted):
            for call in calls.values():
                made(call, Interrupt(), 0)
                unharmed(r)
