"""Sinks of events that wait, raise, or mix up what tiers hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from threading import Event, Lock, get_ident

import pytest

from hexkv.contracts.telemetry import EventSinkContract
from hexkv.ports import Change
from mutants.observing.telemetries import Hurried
from mutants.rows import Wrong, broken


class Contents:
    """A correct EventSink, in memory."""

    def __init__(self):
        self.tiers, self.lock, self.open = defaultdict(dict), Lock(), True

    def emit(self, event):
        with self.lock:
            self.apply(self.tiers[event.tier], event)

    def apply(self, held, event):
        for key in event.keys:
            if event.change is Change.STORED:
                held[key] = True
            else:
                held.pop(key, None)

    def held(self, tier):
        return list(self.tiers[tier])

    def end(self):
        self.open = False


class ContentsContract(Hurried, EventSinkContract):
    Make = Contents

    @pytest.fixture
    def sink(self):
        return self.Make()

    @pytest.fixture
    def held(self, sink):
        return sink.held

    @pytest.fixture
    def end(self, sink):
        return sink.end


def removes_what_is_there(self, held, event):
    for key in event.keys:
        if event.change is Change.STORED:
            held[key] = True
        else:
            del held[key]


def takes_the_first_key(self, real, event):
    real(event)
    self.newest = event.keys[0]


def counts_chunks(self, held, event):
    for key in event.keys:
        held[key] = held.get(key, 0) + (1 if event.change is Change.STORED else -1)
        if not held[key] > 0:
            held.pop(key)


def mixes_tiers(self, real, event):
    with self.lock:
        for held in [self.tiers["memory"], self.tiers["disk"], self.tiers[event.tier]]:
            self.apply(held, event)


def keeps_the_callers_list(self, event):
    self.events = [*getattr(self, "events", ()), event]


def keeps_the_callers_list_held(self, real, tier):
    for event in self.events:
        self.apply(self.tiers[event.tier], event)
    self.events = []
    return real(tier)


def adds_without_a_lock(self, event):
    """Each thread adds to what it has read before another one wrote: the worst turns there are."""
    me, read = get_ident(), self.__dict__.setdefault("read", {})
    alone = all(thread == me for thread, _ in [*read])
    after = read.setdefault((me, event.tier), dict(self.tiers[event.tier]) if alone else {})
    self.apply(after, event)
    self.tiers[event.tier] = dict(after)


def waits_for_a_reader(self, real, event):
    self.waiting = getattr(self, "waiting", 0) + 1
    if self.waiting > 2000:
        Event().wait(1.0)
    real(event)


def raises_when_full(self, real, event):
    self.waiting = getattr(self, "waiting", 0) + 1
    if self.waiting > 10_000:
        raise OverflowError("the queue is full")
    real(event)


def emits_to_a_closed_socket(self, real, event):
    if not self.open:
        raise OSError(9, "Bad file descriptor")
    real(event)


def takes_a_thousand_keys(self, real, held, event):
    real(held, replace(event, keys=event.keys[:1000]))


CONTENTS = {
    "events.2 takes a thousand keys": Wrong(
        "Of a long event the keys beyond a thousand are dropped.", apply=takes_a_thousand_keys
    ),
    "events.1 removes what is there": Wrong(
        "A chunk that leaves a tier must have been there.", apply=removes_what_is_there
    ),
    "events.1 takes the first key": Wrong("An event has a key.", emit=takes_the_first_key),
    "events.2 counts chunks": Wrong(
        "A chunk that is stored twice has to be removed twice.", apply=counts_chunks
    ),
    "events.2 mixes tiers": Wrong("What one tier holds, each tier holds.", emit=mixes_tiers),
    "events.2 keeps the callers list": Wrong(
        "Events wait with the list of keys that is the caller's.",
        emit=keeps_the_callers_list,
        held=keeps_the_callers_list_held,
    ),
    "events.3 waits for a reader": Wrong(
        "A queue that is full makes a store wait.", emit=waits_for_a_reader
    ),
    "events.3 raises when full": Wrong(
        "A queue that is full is the caller's problem.", emit=raises_when_full
    ),
    "events.4 adds without a lock": Wrong(
        "Of two events at once one is lost.", emit=adds_without_a_lock
    ),
    "events.5 emits to a closed socket": Wrong(
        "What its end has closed is written to.", emit=emits_to_a_closed_socket
    ),
}
globals().update(broken(__name__, ContentsContract, Contents, CONTENTS))
