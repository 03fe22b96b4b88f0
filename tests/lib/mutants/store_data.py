"""Stores that do not give back what was written, or not under the key it was written under."""

from __future__ import annotations

from threading import Event

from dict_store import DictContract, DictStore
from hexkv.ports import NAMESPACE_BYTES, Miss, Reason, Stored, StoreFull


class TestGivesAnotherChunk(DictContract):
    """A miss is answered with whatever else is there."""

    breaks = "L1.20"

    class Make(DictStore):
        def fetch(self, key):
            found = super().fetch(key)
            return next(iter(self.medium.values()), None) if found is None else found


class TestDropsTheLastByte(DictContract):
    """A fencepost on the way in."""

    breaks = "L1.1"

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, frame[:-1])


class TestHidesBehindItsOwnReading(DictContract):
    """Bytes are inverted on the way in and out: only the back door sees it."""

    breaks = "L1.13"

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

    breaks = "L1.4"

    class Make(DictStore):
        def write_one(self, item):
            self.medium[item.key] = item.frame
            return Stored(len(item.frame))


class TestAnswersOutOfOrder(DictContract):
    """Outcomes come in the order of the sorted keys."""

    breaks = "L1.20"

    class Make(DictStore):
        def contains(self, keys, deadline):
            return super().contains(sorted(keys), deadline)


class TestFillsRoomsOutOfOrder(DictContract):
    """Hits are compacted: the index given to the sink counts hits, not keys."""

    breaks = "L1.20"

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

    breaks = "L1.6"

    class Make(DictStore):
        def write_one(self, item):
            return Stored(len(item.frame))


class TestDropsTheNamespace(DictContract):
    """Chunks are filed under their digest alone."""

    breaks = "L1.23"

    class Make(DictStore):
        def name(self, key):
            return key[NAMESPACE_BYTES:]


class TestFoldsCase(DictContract):
    """File names on a file system that folds case."""

    breaks = "L1.23"

    class Make(DictStore):
        def name(self, key):
            return key.upper()


class TestStopsAtAZeroByte(DictContract):
    """Keys go through a C string."""

    breaks = "L1.23"

    class Make(DictStore):
        def name(self, key):
            return key.partition(b"\0")[0]


class TestContainsLies(DictContract):
    """A Bloom filter with no second look."""

    breaks = "L1.9"

    class Make(DictStore):
        def has(self, key):
            return True


class TestDeleteAlwaysSaysTrue(DictContract):
    """What was never there is said to have been deleted."""

    breaks = "L1.10"

    class Make(DictStore):
        def forget(self, key):
            super().forget(key)
            return True


class TestDeleteDoesNotDelete(DictContract):
    """Deleted chunks are marked in a set, which reading does not look at."""

    breaks = "L1.11"

    class Make(DictStore):
        def forget(self, key):
            return self.name(key) in self.medium


class TestOverwritesInPlace(DictContract):
    """A shorter frame leaves the tail of the longer one: no truncation."""

    breaks = "L1.8"

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, frame + self.medium.get(name, b"")[len(frame) :])


class TestAsksForAWrongSize(DictContract):
    """Room is taken in whole pages."""

    breaks = "L1.5"

    class Make(DictStore):
        def size(self, frame):
            return -(-len(frame) // 4096) * 4096

        def fill(self, room, frame):
            room[: len(frame)] = frame


class TestFillsHalfTheRoom(DictContract):
    """A short read is taken for the whole."""

    breaks = "L1.5"

    class Make(DictStore):
        def fill(self, room, frame):
            half = len(frame) // 2
            room[:half] = frame[:half]


class TestShortReadsOfLargeFrames(DictContract):
    """One system call moves at most 16 MiB, and nobody loops."""

    breaks = "L1.2"

    class Make(DictStore):
        def publish(self, name, frame):
            super().publish(name, frame[: 16 << 20])


class TestRaisesOnAMiss(DictContract):
    """A chunk that is not there is an exception."""

    breaks = "L1.7"

    class Make(DictStore):
        def fetch(self, key):
            return self.medium[key]


class TestIgnoresARefusal(DictContract):
    """A refused room fails the whole batch."""

    breaks = "L1.12"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            if outcome == Miss(Reason.REFUSED):
                raise StoreFull("no room")
            return outcome


class TestHangsPastTheDeadline(DictContract):
    """Waits for an answer that does not come, whatever the deadline says."""

    breaks = "L1.24"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.answer = Event()

        def in_time(self, index, key, sink, deadline):
            if deadline.expired:
                self.answer.wait(600)
            return super().in_time(index, key, sink, deadline)

        def close(self):
            self.answer.set()
            super().close()


class TestMergesDuplicates(DictContract):
    """Equal keys of a batch are read once, and only the first one's room is filled."""

    breaks = "L1.21"

    class Make(DictStore):
        def read(self, keys, sink, deadline):
            self._check()
            seen = {}
            for i, key in enumerate(keys):
                if key not in seen:
                    seen[key] = super().read_one(i, key, sink, deadline)
            return [seen[key] for key in keys]
