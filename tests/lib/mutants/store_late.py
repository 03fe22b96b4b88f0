"""Stores that take longer than they are given, or lose more than a late write may."""

from __future__ import annotations

from threading import Event, Lock

from dict_store import CapableStore, DictContract, DictStore, PersistentContract
from hexkv.ports import StoreUnreachable, TimedOut
from mutants.store_faults import ServedContract

FOREVER = 600.0
"""Seconds that a mutant waits for what does not come, unless it is closed."""


def later(deadline, seconds=60.0):
    """Another deadline than the caller's."""
    return type(deadline).after(deadline.clock, seconds)


class WaitsForAnAnswer(CapableStore):
    """A part of it waits until it is closed."""

    def __init__(self, medium):
        super().__init__(medium)
        self.answer = Event()

    def close(self):
        self.answer.set()
        super().close()


class TestReadsToTheEndOfItsBatch(DictContract):
    """The deadline is looked at once, before the first chunk."""

    breaks = "L1.30"

    class Make(DictStore):
        def in_time(self, index, key, sink, deadline):
            return self.read_one(index, key, sink, deadline)


class TestWritesToTheEndOfItsBatch(DictContract):
    """Likewise."""

    breaks = "L1.30"

    class Make(DictStore):
        def write(self, items, deadline):
            self.reach(deadline)
            return [self.write_one(item) for item in items]


class TestStopsAmidABatchInAMixture(DictContract):
    """The chunk at which its time is over is half written."""

    breaks = "L1.30"

    class Make(DictStore):
        def write(self, items, deadline):
            outcomes = super().write(items, deadline)
            late = [i for i, outcome in enumerate(outcomes) if outcome == TimedOut()]
            if late and late[0]:
                key, frame = items[late[0]]
                half = len(frame) // 2
                self.medium[key] = bytes(frame[:half]) + self.medium.get(key, b"")[half:]
            return outcomes


class TestWaitsForARange(DictContract):
    """A range is waited for whatever the deadline says."""

    breaks = "L1.24"

    class Make(WaitsForAnAnswer):
        def read_range(self, key, start, into, deadline):
            if deadline.expired:
                self.answer.wait(FOREVER)
            return super().read_range(key, start, into, deadline)


class TestWaitsToSetAside(DictContract):
    """A quarantine waits whatever the deadline says."""

    breaks = "L1.24"

    class Make(WaitsForAnAnswer):
        def quarantine(self, keys, deadline):
            if deadline.expired:
                self.answer.wait(FOREVER)
            super().quarantine(keys, deadline)


class TestReadsUnderItsLock(DictContract):
    """The sink is asked for room under the lock that every call takes."""

    breaks = "L3.9"

    class Make(DictStore):
        def read(self, keys, sink, deadline):
            with self.lock:
                return super().read(keys, sink, deadline)

        def contains(self, keys, deadline):
            with self.lock:
                return super().contains(keys, deadline)


class TestClosesAfterItsReaders(DictContract):
    """Closing waits until nobody reads any more."""

    breaks = "L3.9"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            with self.lock:
                return super().read_one(index, key, sink, deadline)

        def in_time(self, index, key, sink, deadline):
            if not self.lock.acquire(timeout=deadline.remaining()):
                raise StoreUnreachable("somebody else reads")
            self.lock.release()
            return super().in_time(index, key, sink, deadline)

        def close(self):
            with self.lock:
                super().close()


class TestClosesInAWhile(PersistentContract):
    """Closing waits a moment for an answer to its farewell."""

    breaks = "L0.9"

    class Make(CapableStore):
        def close(self):
            if not self.closed:
                Event().wait(1.2)
            super().close()


class TestWaitsBehindItsNeighbour(ServedContract):
    """Calls take turns, and a turn lasts as long as the deadline of whoever has it."""

    breaks = "L4.4"

    class Make(CapableStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.one = Lock()

        def reach(self, deadline):
            with self.one:
                super().reach(deadline)


class TestRangesHaveATimeOutOfTheirOwn(ServedContract):
    """A range is waited for as long as ranges usually take."""

    breaks = "L4.4"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            return super().read_range(key, start, into, later(deadline))


class TestSetsAsideInItsOwnTime(ServedContract):
    """A quarantine has no hurry."""

    breaks = "L4.4"

    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            super().quarantine(keys, later(deadline))


class TestAsksBeforeItLends(ServedContract):
    """Whether what it holds in memory is still valid, its service must say."""

    breaks = "L4.4"

    class Make(CapableStore):
        latest = None

        def reach(self, deadline):
            self.latest = later(deadline)
            super().reach(deadline)

        def get_lease(self, keys, owner):
            if self.latest is not None:
                super().reach(self.latest)
            return super().get_lease(keys, owner)


class TestGivesEachChunkAllTheTime(ServedContract):
    """What was left of the time when the call began is left for each chunk."""

    breaks = "L4.5"

    class Make(CapableStore):
        def contains(self, keys, deadline):
            for left in [deadline.remaining()] * len(keys):
                super().reach(later(deadline, left))
            return [self.has(key) for key in keys]


class TestSendsWhatIsNoLongerTheirs(ServedContract):
    """A write that was given up goes on, with memory that is the caller's again."""

    breaks = "L4.10"

    class Make(CapableStore):
        left = ()

        def write(self, items, deadline):
            try:
                outcomes = super().write(items, deadline)
            except StoreUnreachable:
                self.left = items
                raise
            for item in self.left:
                super().write_one(item)
            self.left = ()
            return outcomes


class TestLosesAnotherForALateWrite(ServedContract):
    """Room was made for what was then not written."""

    breaks = "L4.10"

    class Make(CapableStore):
        def write(self, items, deadline):
            try:
                return super().write(items, deadline)
            except StoreUnreachable:
                mine = {item.key for item in items}
                if mine <= set(self.medium):  # room is made where there is something
                    self.medium.pop(next(key for key in self.medium if key not in mine))
                raise


class TestLeavesHalfOfALateWrite(ServedContract):
    """What was written until the deadline stays, over what was there."""

    breaks = "L4.10"

    class Make(CapableStore):
        def write(self, items, deadline):
            try:
                return super().write(items, deadline)
            except StoreUnreachable:
                key, frame = items[0]
                half = len(frame) // 2
                if key in self.medium:
                    self.medium[key] = bytes(frame[:half]) + self.medium[key][half:]
                raise


class TestListsNothingThatIsGone(ServedContract):
    """The directory that is to be listed is not there: so says the operating system."""

    breaks = "L4.1"

    class Make(CapableStore):
        def scan(self):
            if self.medium.down:
                raise FileNotFoundError(2, "No such file or directory")
            return super().scan()


class TestReadsNoRangeOfWhatIsGone(ServedContract):
    """Likewise, of a range."""

    breaks = "L4.1"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            try:
                return super().read_range(key, start, into, deadline)
            except StoreUnreachable as error:
                raise FileNotFoundError(2, "No such file or directory") from error
