"""Stores that break at the edges: closing, damage, threads, and what they need not offer."""

from __future__ import annotations

import time

from dict_store import CapableStore, DictContract, DictStore, PersistentContract, ScanningStore
from hexkv.contracts.doubles import HeapBlock, ManualClock
from hexkv.contracts.doubles.own_memory import OwnMemoryStore
from hexkv.ports import Entry
from mutants.meetings import HalfDone


class InTwoSteps(DictStore):
    """A frame is published in two steps, and somebody looks in between."""

    def __init__(self, medium):
        super().__init__(medium)
        self.half_done = HalfDone()

    def begin(self, name, frame):
        raise NotImplementedError

    def publish(self, name, frame):
        self.begin(name, frame)
        self.half_done.show()
        super().publish(name, frame)

    def fetch(self, key):
        self.half_done.find()
        found = super().fetch(key)
        self.half_done.seen()
        return found


class TestTearsUnderThreads(DictContract):
    """The new frame is published in two steps: new head and old tail, then all of it."""

    breaks = "L3.1"

    class Make(InTwoSteps):
        def begin(self, name, frame):
            self.medium[name] = frame[:16] + self.medium.get(name, b"")[16:]


class TestPublishesBeforeWriting(DictContract):
    """Room is made under the key, and then the bytes are written to it."""

    breaks = "L3.1"

    class Make(InTwoSteps):
        def begin(self, name, frame):
            self.medium[name] = bytes(len(frame))


class TestLeavesAGapWhileOverwriting(DictContract):
    """The old frame is deleted before the new one is written."""

    breaks = "L3.1"

    class Make(InTwoSteps):
        def begin(self, name, frame):
            self.medium.pop(name, None)


class TestCloseRaisesTheSecondTime(DictContract):
    """The second close uses what the first one has thrown away."""

    breaks = "L0.5"

    class Make(DictStore):
        def close(self):
            self._check()
            super().close()


class TestCrashesOnceClosed(DictContract):
    """Uses what close() has thrown away."""

    breaks = "L0.6"

    class Make(DictStore):
        def _check(self):
            pass

        def close(self):
            self.closed = True
            self.medium = None


class TestMendsDamage(DictContract):
    """A frame that looks damaged is replaced by the last good one that was seen."""

    breaks = "L2.3"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.good = {}

        def publish(self, name, frame):
            super().publish(name, frame)
            self.good[name] = frame

        def fetch(self, key):
            frame = super().fetch(key)
            return frame if frame is None else self.good.get(key, frame)


class TestFallsOverDamage(DictContract):
    """Trusts the length that it remembers."""

    breaks = "L2.1"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.sizes = {}

        def publish(self, name, frame):
            super().publish(name, frame)
            self.sizes[name] = len(frame)

        def fetch(self, key):
            frame = super().fetch(key)
            if frame is not None and len(frame) < self.sizes.get(key, 0):
                raise IndexError("the frame is shorter than it was")
            return frame


class TestScanForgetsOne(DictContract):
    """A scan leaves the first chunk out."""

    breaks = "scan.1"

    class Make(ScanningStore):
        def scan(self):
            yield from list(super().scan())[1:]


class TestScanListsStrangers(DictContract):
    """A temporary file is listed as a chunk."""

    breaks = "scan.1"

    class Make(ScanningStore):
        def scan(self):
            yield from super().scan()
            if self.medium:
                yield Entry(b"temporary", 0, time.time())


class TestMisspellsAnAbility(DictContract):
    """One method of an ability is there, the other is spelt in another way."""

    breaks = "L0.2"

    class Make(DictStore):
        def put_lease(self, keys, leases): ...


class TestQuarantineKeepsReading(DictContract):
    """What is set aside is copied, and stays readable."""

    breaks = "quarantine.1"

    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            self.aside = {key: self.medium.get(key) for key in keys}


class TestLeaksALease(DictContract):
    """Forgets the leases that it keeps when it is closed."""

    breaks = "sharing.9"

    class Make(CapableStore):
        def close(self):
            self.closed = True


class TestLendsACopy(DictContract):
    """A lease is lent on a copy of the block."""

    breaks = "sharing.1"

    class Make(CapableStore):
        def get_lease(self, keys, owner):
            frames = [self.fetch(key) for key in keys]
            return [f if f is None else HeapBlock(f).lease(owner) for f in frames]


class TestCopiesEachLoan(DictContract):
    """It keeps chunks in memory of its own, and copies them once more for each borrower."""

    breaks = "sharing.1"

    class Make(OwnMemoryStore):
        def __init__(self, medium):
            super().__init__(ManualClock())

        def get_lease(self, keys, owner):
            return [lease and self.copy(lease, owner) for lease in super().get_lease(keys, owner)]

        def copy(self, lease, owner):
            with lease:
                return HeapBlock(bytes(lease.frame), lease.spec).lease(owner)


class TestForgetsTheLeaseItWasGiven(DictContract):
    """Keeps a share, and never releases the lease itself."""

    breaks = "sharing.2"

    class Make(CapableStore):
        def put_lease(self, keys, leases):
            super().put_lease(keys, [lease.share(lease.owner) for lease in leases])
            self.forgotten = [*getattr(self, "forgotten", ()), *leases]


class TestRangeForgetsTheStart(DictContract):
    """A range is read from the frame's beginning."""

    breaks = "range.1"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            return super().read_range(key, 0, into, deadline)


class TestReopensEmptyFrames(PersistentContract):
    """What was not flushed comes back as empty frames."""

    breaks = "L3.4"

    class Make(CapableStore):
        def close(self):
            super().close()
            for key in self.medium:
                self.medium[key] = b""


class TestResurrects(PersistentContract):
    """A journal is replayed without its deletions."""

    breaks = "L3.5"

    class Make(CapableStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.deleted = {}

        def forget(self, key):
            self.deleted[key] = self.medium.get(key)
            return super().forget(key)

        def close(self):
            super().close()
            self.medium.update(self.deleted)
