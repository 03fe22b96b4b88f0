"""Stores that count in too few bits, take a head for the whole, tear frames, or leak."""

from __future__ import annotations

import contextlib

import pytest

from dict_store import CapableStore, DictContract, DictStore, WholeContract
from hexkv.contracts.doubles import deadline as any_deadline
from hexkv.ports import Hit, Miss, Reason, StoreUnreachable
from mutants.store_faults import ServedContract
from mutants.store_rest import InTwoSteps

HEAD = 4096


class TestOverwritesEqualLengthsInPlace(DictContract):
    """A frame that is as long as the old one is written over it, a half at a time."""

    breaks = "L3.1"

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """It is not waited for long where nobody looks."""
        monkeypatch.setattr("mutants.meetings.PATIENCE", 5.0)

    class Make(InTwoSteps):
        def begin(self, name, frame):
            old, half = self.medium[name], len(frame) // 2
            self.medium[name] = frame[:half] + old[half:]

        def publish(self, name, frame):
            if len(self.medium.get(name, b"")) == len(frame):
                super().publish(name, frame)
            else:
                DictStore.publish(self, name, frame)


class TestReadsTheRestLater(DictContract):
    """The head tells how much room there must be; the rest is read once there is room."""

    breaks = "L3.1"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            frame = self.fetch(key)
            if frame is None:
                return Miss()
            room = sink.room(index, len(frame))
            if room is None:
                return Miss(Reason.REFUSED)
            now = self.fetch(key)
            whole = frame[:HEAD] + now[HEAD:] if len(now) == len(frame) else frame
            room[:] = whole
            return Hit(len(frame))


class TestKeepsOneFrameForEachHead(DictContract):
    """Frames that begin alike, and are as long, are kept once."""

    breaks = "L1.8"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.heads = {}

        def publish(self, name, frame):
            alike = self.heads.setdefault((frame[:HEAD], len(frame)), frame)
            super().publish(name, alike if len(frame) > HEAD else frame)


class TestDoesNotWriteWhatLooksTheSame(DictContract):
    """A frame that begins and ends as the one that is there is taken for it."""

    breaks = "L1.8"

    class Make(DictStore):
        def publish(self, name, frame):
            old = self.medium.get(name, b"")
            same = [(one[:HEAD], one[-HEAD:], len(one)) for one in (old, frame)]
            if name not in self.medium or same[0] != same[1]:
                super().publish(name, frame)


class TestAsksForRoomIn32Bits(WholeContract):
    """A frame of 4 GiB and some bytes is these bytes."""

    breaks = "L1.29"

    class Make(CapableStore):
        def size(self, frame):
            return len(frame) & 0xFFFF_FFFF


class TestListsSizesIn32Bits(WholeContract):
    """Likewise, in a scan."""

    breaks = "L1.29"

    class Make(CapableStore):
        def scan(self):
            for entry in super().scan():
                yield entry._replace(size=entry.size & 0xFFFF_FFFF)


class TestReadsRangesIn31Bits(WholeContract):
    """What lies beyond 2 GiB is said not to be there."""

    breaks = "L1.29"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            if start >= 1 << 31:
                return Miss()
            return super().read_range(key, start, into, deadline)


class TestLeavesAFileOpenForAMiss(DictContract):
    """What was opened to look for a chunk is closed after it was read."""

    breaks = "L0.8"

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """It is waited for a little only."""
        monkeypatch.setattr("hexkv.contracts.store.faulty._lasting.GOING", 1.0)

    class Make(DictStore):
        opened = []  # noqa: RUF012 - it outlives the calls, that is what is wrong

        def fetch(self, key):
            found = super().fetch(key)
            if found is None:
                self.opened.append(open("/dev/null", "rb"))  # noqa: SIM115
            return found

        def close(self):
            super().close()
            while self.opened:
                self.opened.pop().close()


class TestKeepsWhatWasRefused(DictContract):
    """What nobody had room for is kept for the next time."""

    breaks = "L0.8"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.kept = []

        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            if outcome == Miss(Reason.REFUSED):
                self.kept.append(bytearray(self.fetch(key)))
            return outcome


class TestKeepsWhatCameTooLate(DictContract):
    """What came after its deadline is kept, and looked at by nobody."""

    breaks = "L0.8"

    class Make(DictStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.late = []

        def write(self, items, deadline):
            if deadline.expired:
                self.late += [bytearray(item.frame) for item in items]
            return super().write(items, deadline)


class TestLeavesAConnectionForAFailure(ServedContract):
    """A connection that fails is forgotten, not closed."""

    breaks = "L4.6"

    class Make(CapableStore):
        opened = []  # noqa: RUF012 - likewise

        def reach(self, deadline):
            try:
                super().reach(deadline)
            except StoreUnreachable:
                for _ in range(2):
                    self.opened.append(open("/dev/null", "rb"))  # noqa: SIM115
                raise

        def close(self):
            super().close()
            while self.opened:
                self.opened.pop().close()


class TestKeepsTheBufferOfARange(DictContract):
    """A range is remembered by the memory that it was read into."""

    breaks = "L1.4"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            self.last = key, start, into
            return super().read_range(key, start, into, deadline)


class TestKeepsTheBufferOfALateWrite(DictContract):
    """What came too late is written when there is time."""

    breaks = "L1.4"

    class Make(DictStore):
        later = ()

        def write(self, items, deadline):
            if deadline.expired:
                self.later = items
            elif self.later:
                with contextlib.suppress(ValueError):
                    super().write(self.later, any_deadline())
            return super().write(items, deadline)
