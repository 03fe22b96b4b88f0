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


class TestHasNoDelete(DictContract):
    """A method of the port is missing."""

    breaks = "L0.1"

    class Make(DictStore):
        delete = None


class TestBeginsWithLeftovers(DictContract):
    """A probe that was written when it was opened is still there."""

    breaks = "L0.3"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            medium[chunk_key("probe")] = b"is anybody there?"


class TestWantsAKey(DictContract):
    """The first key of an empty batch is looked at."""

    breaks = "L0.4"

    class Make(DictStore):
        def contains(self, keys, deadline):
            assert keys[0]
            return super().contains(keys, deadline)


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


class TestWantsAlignedBuffers(DictContract):
    """Memory must start at a word."""

    breaks = "L1.3"

    class Make(DictStore):
        def fill(self, room, frame):
            if room.nbytes and ctypes.addressof(ctypes.c_char.from_buffer(room)) % 8:
                raise ValueError("unaligned")
            super().fill(room, frame)


class TestReadsItsOwnCopy(DictContract):
    """Only what was written through this very object is known."""

    breaks = "L1.14"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.known = set()

        def publish(self, name, frame):
            super().publish(name, frame)
            self.known.add(name)

        def fetch(self, key):
            return super().fetch(key) if key in self.known else None


class TestForgetsTheOldest(DictContract):
    """There is room for three chunks, and nobody said so."""

    breaks = "L1.15"

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, frame)
            while len(self.medium) > 3:
                del self.medium[next(iter(self.medium))]


class TestMixesDuplicates(DictContract):
    """Two frames of a batch under one key are written over each other."""

    breaks = "L1.22"

    class Make(DictStore):
        def write(self, items, deadline):
            outcomes = super().write(items, deadline)
            twice = [item for item in items if item.key == items[0].key]
            if len(twice) > 1:
                first, last = bytes(twice[0].frame), bytes(twice[-1].frame)
                self.publish(self.name(items[0].key), last + first[len(last) :])
            return outcomes


class TestWritesTheSmallestFirst(DictContract):
    """Items are written, and answered, in order of their size."""

    breaks = "L1.26"

    class Make(DictStore):
        def write(self, items, deadline):
            return super().write(sorted(items, key=lambda item: len(item.frame)), deadline)


class TestAnswersAThousandAtMost(DictContract):
    """What does not fit into one command is taken to be absent."""

    breaks = "L1.27"

    class Make(DictStore):
        def contains(self, keys, deadline):
            first = super().contains(keys[:1000], deadline)
            return [*first, *[False] * (len(keys) - len(first))]


class TestIsOptimisticWhenLate(DictContract):
    """When the deadline has passed, a chunk that is there counts as read."""

    breaks = "L1.25"

    class Make(DictStore):
        def in_time(self, index, key, sink, deadline):
            if deadline.expired and self.has(key):
                frame = self.fetch(key)
                sink.room(index, len(frame))
                return Hit(len(frame))
            return super().in_time(index, key, sink, deadline)


class TestFollowsItsMemory(DictContract):
    """A chunk is looked for where it was put, whatever is there now."""

    breaks = "L2.2"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.put = {}

        def publish(self, name, frame):
            super().publish(name, frame)
            self.put[name] = frame

        def fetch(self, key):
            found = super().fetch(key)
            return self.put[key] if found in self.put.values() else found


class TestBelievesThatItIsThere(DictContract):
    """What was written before is not written again: it must be there."""

    breaks = "L2.4"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.before = {}

        def publish(self, name, frame):
            if self.before.get(name) != frame:
                super().publish(name, frame)
            self.before[name] = frame

        def forget(self, key):
            self.before.pop(self.name(key), None)
            return super().forget(key)


class TestSharesItsWorkingState(DictContract):
    """The item that is being written is kept in an attribute."""

    breaks = "L3.2"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.overtaking = Overtaking()

        def write_one(self, item):
            self.item = item
            self.overtaking.wait()
            return super().write_one(self.item)


class TestHangsInClose(DictContract):
    """Closing waits for an answer to its farewell."""

    breaks = "L3.3"

    class Make(DictStore):
        def close(self):
            super().close()
            Event().wait(600)


class TestFailsInItsOwnWayOnceClosed(DictContract):
    """What close() takes away is used by calls that have begun."""

    breaks = "L3.3"

    class Make(DictStore):
        def reach(self, deadline):
            super().reach(deadline)
            time.sleep(0)  # lets another thread in

        def _check(self):
            if self.closed:
                raise OSError(9, "Bad file descriptor")


class TestReopensForReading(PersistentContract):
    """Where something is stored already, nothing is written any more."""

    breaks = "L3.6"

    class Make(CapableStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.frozen = bool(medium)

        def publish(self, name, frame):
            if not self.frozen:
                super().publish(name, frame)


class TestRemembersPerThread(DictContract):
    """Each thread reads a chunk once, and goes on with what it has read."""

    breaks = "L3.7"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.mine = threading.local()
            self.in_step = InStep(WORKERS)

        def seen(self):
            return self.mine.__dict__

        def reach(self, deadline):
            super().reach(deadline)
            self.in_step.wait()  # else each thread might do all its work in one turn

        def fetch(self, key):
            return self.seen().setdefault(key, super().fetch(key))

        def publish(self, name, frame):
            super().publish(name, frame)
            self.seen()[name] = frame

        def forget(self, key):
            self.seen().pop(key, None)
            return super().forget(key)


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


class TestAcknowledgesBeforeItWrites(DictContract):
    """A write is done when the next one begins."""

    breaks = "L1.6"

    class Make(DictStore):
        waiting = None

        def write_one(self, item):
            if self.waiting is not None:
                super().write_one(self.waiting)
            self.waiting = item._replace(frame=memoryview(bytes(item.frame)))
            return Stored(len(item.frame))


class TestTakesWhatItCannotReadForThere(WholeContract):
    """A chunk that is there is not written again, whether or not it can be read."""

    breaks = "L2.5"

    class Make(CapableStore):
        def write_one(self, item):
            there = self.medium.get(item.key)
            if isinstance(there, BadSector):
                return Stored(0)
            return super().write_one(item)


class TestFailsTogether(WholeContract):
    """One chunk that cannot be read fails for all that are read with it."""

    breaks = "L2.5"

    class Make(CapableStore):
        def read(self, keys, sink, deadline):
            outcomes = super().read(keys, sink, deadline)
            failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
            return failed[:1] * len(keys) if failed else outcomes


class TestSaysThatItIsOutOfReach(WholeContract):
    """A chunk that cannot be read counts as a store that does not answer."""

    breaks = "L2.5"

    class Make(CapableStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            broken = isinstance(outcome, Failed)
            return Failed(StoreUnreachable(str(outcome.error))) if broken else outcome
