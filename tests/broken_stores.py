"""Stores that each break one promise, on top of one that is correct.

Not collected by itself: ``test_contract_kit`` runs the contract on the classes in here, and
looks at who is caught, and for what.
"""

from __future__ import annotations

import time
from threading import Event

from dict_store import (
    CapableStore,
    DictContract,
    DictStore,
    PersistentContract,
    ScanningStore,
    WholeContract,
)
from hexkv.contracts.doubles import HeapBlock
from hexkv.contracts.whole import waive
from hexkv.ports import NAMESPACE_BYTES, Entry, Miss, MissReason, Stored, StoreFull


class TestCorrect(WholeContract):
    Make = CapableStore


class TestCorrectAndPlain(DictContract):
    Make = DictStore


# One class per lie from here on. The docstring says what is wrong.


class TestGivesAnotherChunk(DictContract):
    """A miss is answered with whatever else is there."""

    class Make(DictStore):
        def fetch(self, key):
            found = super().fetch(key)
            return next(iter(self.medium.values()), None) if found is None else found


class TestDropsTheLastByte(DictContract):
    """A fencepost on the way in."""

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, frame[:-1])


class TestHidesBehindItsOwnReading(DictContract):
    """Bytes are inverted on the way in and out: only the back door sees it."""

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, bytes(b ^ 0xFF for b in frame[:10_000]) + frame[10_000:])

        def fetch(self, key):
            frame = super().fetch(key)
            if frame is None:
                return None
            return bytes(b ^ 0xFF for b in frame[:10_000]) + frame[10_000:]


class TestKeepsTheCallersBuffer(DictContract):
    """No copy is made."""

    class Make(DictStore):
        def write_one(self, item):
            self.medium[item.key] = item.frame
            return Stored(len(item.frame))


class TestAnswersOutOfOrder(DictContract):
    """Outcomes come in the order of the sorted keys."""

    class Make(DictStore):
        def contains(self, keys, deadline):
            return super().contains(sorted(keys), deadline)


class TestFillsRoomsOutOfOrder(DictContract):
    """Hits are compacted: the index given to the sink counts hits, not keys."""

    class Make(DictStore):
        def read(self, keys, sink, deadline):
            self._check()
            hits = iter(range(len(keys)))
            return [
                self.read_one(next(hits), key, sink, deadline) if self.has(key) else Miss()
                for key in keys
            ]


class TestSaysStoredAndDidNot(DictContract):
    """Writes are acknowledged and dropped."""

    class Make(DictStore):
        def write_one(self, item):
            return Stored(len(item.frame))


class TestDropsTheNamespace(DictContract):
    """Chunks are filed under their digest alone."""

    class Make(DictStore):
        def name(self, key):
            return key[NAMESPACE_BYTES:]


class TestFoldsCase(DictContract):
    """File names on a file system that folds case."""

    class Make(DictStore):
        def name(self, key):
            return key.upper()


class TestStopsAtAZeroByte(DictContract):
    """Keys go through a C string."""

    class Make(DictStore):
        def name(self, key):
            return key.partition(b"\0")[0]


class TestContainsLies(DictContract):
    """A Bloom filter with no second look."""

    class Make(DictStore):
        def has(self, key):
            return True


class TestDeleteAlwaysSaysTrue(DictContract):
    class Make(DictStore):
        def forget(self, key):
            super().forget(key)
            return True


class TestDeleteDoesNotDelete(DictContract):
    """Deleted chunks are marked in a set, which reading does not look at."""

    class Make(DictStore):
        def forget(self, key):
            return self.name(key) in self.medium


class TestOverwritesInPlace(DictContract):
    """A shorter frame leaves the tail of the longer one: no truncation."""

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, frame + self.medium.get(name, b"")[len(frame) :])


class TestTearsUnderThreads(DictContract):
    """The new frame is published in two steps: new head and old tail, then all of it."""

    class Make(DictStore):
        def publish(self, name, frame):
            half = len(frame) // 2
            super().publish(name, frame[:half] + self.medium.get(name, b"")[half:])
            time.sleep(0)  # lets another thread look
            super().publish(name, frame)


class TestLeavesAGapWhileOverwriting(DictContract):
    """The old frame is deleted before the new one is written."""

    class Make(DictStore):
        def publish(self, name, frame):
            self.medium.pop(name, None)
            time.sleep(0)  # lets another thread look
            super().publish(name, frame)


class TestAsksForAWrongSize(DictContract):
    """Room is taken in whole pages."""

    class Make(DictStore):
        def size(self, frame):
            return -(-len(frame) // 4096) * 4096

        def fill(self, room, frame):
            room[: len(frame)] = frame


class TestFillsHalfTheRoom(DictContract):
    """A short read is taken for the whole."""

    class Make(DictStore):
        def fill(self, room, frame):
            half = len(frame) // 2
            room[:half] = frame[:half]


class TestShortReadsOfLargeFrames(DictContract):
    """One system call moves at most 16 MiB, and nobody loops."""

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, frame[: 16 << 20])


class TestRaisesOnAMiss(DictContract):
    class Make(DictStore):
        def fetch(self, key):
            return self.medium[key]


class TestIgnoresARefusal(DictContract):
    """A refused room fails the whole batch."""

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            if outcome == Miss(MissReason.REFUSED):
                raise StoreFull("no room")
            return outcome


class TestHangsPastTheDeadline(DictContract):
    """Waits for an answer that does not come, whatever the deadline says."""

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.answer = Event()

        def read_one(self, index, key, sink, deadline):
            if deadline.expired:
                self.answer.wait(30)
            return super().read_one(index, key, sink, deadline)

        def close(self):
            self.answer.set()
            super().close()


class TestMergesDuplicates(DictContract):
    """Equal keys of a batch are read once, and only the first one's room is filled."""

    class Make(DictStore):
        def read(self, keys, sink, deadline):
            self._check()
            seen = {}
            for i, key in enumerate(keys):
                if key not in seen:
                    seen[key] = super().read_one(i, key, sink, deadline)
            return [seen[key] for key in keys]


class TestCloseRaisesTheSecondTime(DictContract):
    class Make(DictStore):
        def close(self):
            self._check()
            super().close()


class TestCrashesOnceClosed(DictContract):
    """Uses what close() has thrown away."""

    class Make(DictStore):
        def _check(self):
            pass

        def close(self):
            self.closed = True
            self.medium = None


class TestMendsDamage(DictContract):
    """A frame that looks damaged is replaced by the last good one that was seen."""

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
    class Make(ScanningStore):
        def scan(self):
            yield from list(super().scan())[1:]


class TestScanListsStrangers(DictContract):
    """A temporary file is listed as a chunk."""

    class Make(ScanningStore):
        def scan(self):
            yield from super().scan()
            if self.medium:
                yield Entry(b"temporary", 0, time.time())


class TestMisspellsAnAbility(DictContract):
    class Make(DictStore):
        def keep(self, key, lease): ...


class TestQuarantineKeepsReading(DictContract):
    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            self.aside = {key: self.medium.get(key) for key in keys}


class TestLeaksALease(DictContract):
    """Forgets the leases that it keeps when it is closed."""

    class Make(CapableStore):
        def close(self):
            self.closed = True


class TestLendsACopy(DictContract):
    class Make(CapableStore):
        def lend(self, keys, owner):
            frames = [self.fetch(key) for key in keys]
            return [f if f is None else HeapBlock(f).lease(owner) for f in frames]


class TestTakesTheCallersLease(DictContract):
    """Keeps the lease it was shown instead of a share."""

    class Make(CapableStore):
        def keep(self, key, lease):
            self.let_go(key)
            self.leases[key] = lease
            self.medium[key] = bytes(lease.frame)


class TestRangeForgetsTheStart(DictContract):
    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            return super().read_range(key, 0, into, deadline)


class TestReopensEmptyFrames(PersistentContract):
    """What was not flushed comes back as empty frames."""

    class Make(CapableStore):
        def close(self):
            super().close()
            for key in self.medium:
                self.medium[key] = b""


class TestResurrects(PersistentContract):
    """A journal is replayed without its deletions."""

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


class TestDropsAPromise(DictContract):
    """The store is correct; its test class is not."""

    def test_a_miss_is_a_value(self): ...


class TestWaivesAPromise(DictContract):
    """Allowed: the reason shows in the report."""

    test_a_miss_is_a_value = waive("misses are not known here")
