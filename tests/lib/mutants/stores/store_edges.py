"""Stores that are right nearly always: not when empty, asked in batches, reopened or hurried."""

from __future__ import annotations

import ctypes
import threading
import time
from threading import Event
from types import SimpleNamespace

import pytest
from hypothesis import Phase

from dict_store import (
    BadSector,
    CapableStore,
    DictContract,
    DictStore,
    PersistentContract,
    WholeContract,
)
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.store.parallel._threads import WORKERS
from hexkv.ports import Failed, Hit, Stored, StoreUnreachable
from mutants.meetings import InStep, Overtaking
from mutants.rows import Wrong, broken


def begins_with_leftovers(self, real, medium):
    real(medium)
    medium[chunk_key("probe")] = b"is anybody there?"


def wants_a_key(self, real, keys, deadline):
    assert keys[0]
    return real(keys, deadline)


class TestLeaksAConnection(PersistentContract):
    """Closing forgets the connection and its twin, and closes neither."""

    breaks = "L0.7"

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """It is waited for a little only."""
        monkeypatch.setattr("hexkv.contracts.store.faulty._lasting.GOING", 1.0)

    class Make(CapableStore):
        connections = []  # noqa: RUF012 - it outlives the stores, that is what is wrong

        def __init__(self, medium):
            super().__init__(medium)
            for _ in range(2):  # so that it is seen, too, when something else has just gone
                self.connections.append(open("/dev/null", "rb"))  # noqa: SIM115


def wants_aligned_buffers(self, real, room, frame):
    if room.nbytes and ctypes.addressof(ctypes.c_char.from_buffer(room)) % 8:
        raise ValueError("unaligned")
    real(room, frame)


def reads_its_own_copy(self, real, medium):
    real(medium)
    self.known = set()


def reads_its_own_copy_publish(self, real, name, frame):
    real(name, frame)
    self.known.add(name)


def forgets_the_oldest(self, real, name, frame):
    real(name, frame)
    while len(self.medium) > 3:
        del self.medium[next(iter(self.medium))]


def mixes_duplicates(self, real, items, deadline):
    outcomes = real(items, deadline)
    twice = [item for item in items if item.key == items[0].key]
    if len(twice) > 1:
        first, last = bytes(twice[0].frame), bytes(twice[-1].frame)
        self.publish(self.name(items[0].key), last + first[len(last) :])
    return outcomes


def writes_the_smallest_first(self, real, items, deadline):
    return real(sorted(items, key=lambda item: len(item.frame)), deadline)


def answers_a_thousand_at_most(self, real, keys, deadline):
    first = real(keys[:1000], deadline)
    return [*first, *[False] * (len(keys) - len(first))]


def is_optimistic_when_late(self, real, index, key, sink, deadline):
    if deadline.expired and self.has(key):
        frame = self.fetch(key)
        sink.room(index, len(frame))
        return Hit(len(frame))
    return real(index, key, sink, deadline)


def follows_its_memory(self, real, medium):
    real(medium)
    self.put = {}


def follows_its_memory_publish(self, real, name, frame):
    real(name, frame)
    self.put[name] = frame


def follows_its_memory_fetch(self, real, key):
    found = real(key)
    return self.put[key] if found in self.put.values() else found


def believes_that_it_is_there(self, real, medium):
    real(medium)
    self.before = {}


def believes_that_it_is_there_publish(self, real, name, frame):
    if self.before.get(name) != frame:
        real(name, frame)
    self.before[name] = frame


def believes_that_it_is_there_forget(self, real, key):
    self.before.pop(self.name(key), None)
    return real(key)


def shares_its_working_state(self, real, medium):
    real(medium)
    self.overtaking = Overtaking()


def shares_its_working_state_write_one(self, real, item):
    self.item = item
    self.overtaking.wait()
    return real(self.item)


def hangs_in_close(self, real):
    real()
    Event().wait(600)


def fails_in_its_own_way_once_closed(self, real, deadline):
    real(deadline)
    time.sleep(0)  # lets another thread in


def fails_in_its_own_way_once_closed_check(self):
    if self.closed:
        raise OSError(9, "Bad file descriptor")


def reopens_for_reading(self, real, medium):
    real(medium)
    self.frozen = bool(medium)


def reopens_for_reading_publish(self, real, name, frame):
    if not self.frozen:
        real(name, frame)


def remembers_per_thread(self, real, medium):
    real(medium)
    self.mine = threading.local()
    self.in_step = InStep(WORKERS)


def remembers_per_thread_reach(self, real, deadline):
    real(deadline)
    self.in_step.wait()  # else each thread might do all its work in one turn


def remembers_per_thread_publish(self, real, name, frame):
    real(name, frame)
    self.seen()[name] = frame


def remembers_per_thread_forget(self, real, key):
    self.seen().pop(key, None)
    return real(key)


class TestBuriesForGood(DictContract):
    """What was deleted once is said to be absent, also after it was written again."""

    breaks = "L3.8"

    @pytest.fixture(autouse=True)
    def the_first_that_is_found(self, monkeypatch):
        """A sequence of calls that shows it will do; a shorter one would take half a minute."""
        without = SimpleNamespace(
            explicit=Phase.explicit, generate=Phase.generate, shrink=Phase.generate
        )
        monkeypatch.setattr("hexkv.contracts.kit.examples.Phase", without)

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.buried = set()

        def forget(self, key):
            self.buried.add(key)
            return super().forget(key)

        def has(self, key):
            return key not in self.buried and super().has(key)


def acknowledges_before_it_writes(self, real, item):
    if self.waiting is not None:
        real(self.waiting)
    self.waiting = item._replace(frame=memoryview(bytes(item.frame)))
    return Stored(len(item.frame))


def takes_what_it_cannot_read_for_there(self, real, item):
    there = self.medium.get(item.key)
    if isinstance(there, BadSector):
        return Stored(0)
    return real(item)


def fails_together(self, real, keys, sink, deadline):
    outcomes = real(keys, sink, deadline)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    return failed[:1] * len(keys) if failed else outcomes


def says_that_it_is_out_of_reach(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
    broken = isinstance(outcome, Failed)
    return Failed(StoreUnreachable(str(outcome.error))) if broken else outcome


DICT_STORE = {
    "L0.1 has no delete": Wrong("A method of the port is missing.", delete=None),
    "L0.3 begins with leftovers": Wrong(
        "A probe that was written when it was opened is still there.",
        __init__=begins_with_leftovers,
    ),
    "L0.4 wants a key": Wrong(
        "The first key of an empty batch is looked at.", contains=wants_a_key
    ),
    "L1.3 wants aligned buffers": Wrong("Memory must start at a word.", fill=wants_aligned_buffers),
    "L1.14 reads its own copy": Wrong(
        "Only what was written through this very object is known.",
        __init__=reads_its_own_copy,
        publish=reads_its_own_copy_publish,
        fetch=lambda self, real, key: real(key) if key in self.known else None,
    ),
    "L1.15 forgets the oldest": Wrong(
        "There is room for three chunks, and nobody said so.", publish=forgets_the_oldest
    ),
    "L1.22 mixes duplicates": Wrong(
        "Two frames of a batch under one key are written over each other.", write=mixes_duplicates
    ),
    "L1.26 writes the smallest first": Wrong(
        "Items are written, and answered, in order of their size.", write=writes_the_smallest_first
    ),
    "L1.27 answers a thousand at most": Wrong(
        "What does not fit into one command is taken to be absent.",
        contains=answers_a_thousand_at_most,
    ),
    "L1.25 is optimistic when late": Wrong(
        "When the deadline has passed, a chunk that is there counts as read.",
        in_time=is_optimistic_when_late,
    ),
    "L2.2 follows its memory": Wrong(
        "A chunk is looked for where it was put, whatever is there now.",
        __init__=follows_its_memory,
        publish=follows_its_memory_publish,
        fetch=follows_its_memory_fetch,
    ),
    "L2.4 believes that it is there": Wrong(
        "What was written before is not written again: it must be there.",
        __init__=believes_that_it_is_there,
        publish=believes_that_it_is_there_publish,
        forget=believes_that_it_is_there_forget,
    ),
    "L3.2 shares its working state": Wrong(
        "The item that is being written is kept in an attribute.",
        __init__=shares_its_working_state,
        write_one=shares_its_working_state_write_one,
    ),
    "L3.3 hangs in close": Wrong(
        "Closing waits for an answer to its farewell.", close=hangs_in_close
    ),
    "L3.3 fails in its own way once closed": Wrong(
        "What close() takes away is used by calls that have begun.",
        reach=fails_in_its_own_way_once_closed,
        _check=fails_in_its_own_way_once_closed_check,
    ),
    "L3.7 remembers per thread": Wrong(
        "Each thread reads a chunk once, and goes on with what it has read.",
        __init__=remembers_per_thread,
        seen=lambda self: self.mine.__dict__,
        reach=remembers_per_thread_reach,
        fetch=lambda self, real, key: self.seen().setdefault(key, real(key)),
        publish=remembers_per_thread_publish,
        forget=remembers_per_thread_forget,
    ),
    "L1.6 acknowledges before it writes": Wrong(
        "A write is done when the next one begins.",
        waiting=None,
        write_one=acknowledges_before_it_writes,
    ),
}
globals().update(broken(__name__, DictContract, DictStore, DICT_STORE))


PERSISTENT_CONTRACT = {
    "L3.6 reopens for reading": Wrong(
        "Where something is stored already, nothing is written any more.",
        __init__=reopens_for_reading,
        publish=reopens_for_reading_publish,
    ),
}
globals().update(broken(__name__, PersistentContract, CapableStore, PERSISTENT_CONTRACT))


WHOLE_CONTRACT = {
    "L2.5 takes what it cannot read for there": Wrong(
        "A chunk that is there is not written again, whether or not it can be read.",
        write_one=takes_what_it_cannot_read_for_there,
    ),
    "L2.5 fails together": Wrong(
        "One chunk that cannot be read fails for all that are read with it.", read=fails_together
    ),
    "L2.5 says that it is out of reach": Wrong(
        "A chunk that cannot be read counts as a store that does not answer.",
        read_one=says_that_it_is_out_of_reach,
    ),
}
globals().update(broken(__name__, WholeContract, CapableStore, WHOLE_CONTRACT))
