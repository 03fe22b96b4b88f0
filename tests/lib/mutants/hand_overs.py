"""Stores that leave their memory to another one wrongly."""

from __future__ import annotations

import ctypes
import os
from itertools import count

import pytest

from hexkv.contracts.hand_over import HandOverContract
from hexkv.ports import (
    PAGE,
    Entry,
    Failed,
    FrameFile,
    Hit,
    Miss,
    PlacedFrame,
    Stored,
    StoreError,
)


def whole(size):
    return -(-size // PAGE) * PAGE


class LeavingStore:
    """A correct one: frames in a memfd, one behind the other."""

    passes_on = True

    def __init__(self, inherited=None):
        self.places, self.late = {}, []
        self.adopting = self.frozen = inherited is not None
        self.closed = False
        self.times = count(1.0)
        if inherited is None:
            self.file, self.end = os.memfd_create("leaving"), 0
        else:
            self.file, self.end = self.copied(inherited.descriptor), self.after(inherited)
            for key, offset, size in inherited.frames:
                self.places[key] = self.place(offset), size, next(self.times)

    def copied(self, descriptor):
        return os.dup(descriptor)

    def after(self, inherited):
        return inherited.end

    def place(self, offset):
        return offset

    def contains(self, keys, deadline):
        return [key in self.places for key in keys]

    def read(self, keys, sink, deadline):
        return [self.read_one(index, key, sink) for index, key in enumerate(keys)]

    def read_one(self, index, key, sink):
        if key not in self.places:
            return Miss()
        offset, size, _ = self.places[key]
        sink.room(index, size)[:] = os.pread(self.file, size, offset)
        return Hit(size)

    def write(self, items, deadline):
        return [self.write_one(item) for item in items]

    def refuses(self):
        return self.frozen

    def write_one(self, item):
        if self.refuses():
            return Failed(StoreError("frozen"))
        self.delete([item.key], None)
        offset, self.end = self.end, self.end + whole(len(item.frame))
        os.pwrite(self.file, item.frame, offset)
        self.places[item.key] = offset, len(item.frame), next(self.times)
        return Stored(len(item.frame))

    def delete(self, keys, deadline):
        return [self.delete_one(key) for key in keys]

    def delete_one(self, key):
        if key not in self.places:
            return False
        offset, size, _ = self.places.pop(key)
        self.free(offset, whole(size))
        return True

    def free(self, offset, size):
        if self.frozen:
            self.late.append((offset, size))
        else:
            self.punch(offset, size)

    def punch(self, offset, size):
        if size:
            fallocate = ctypes.CDLL(None, use_errno=True).fallocate
            assert not fallocate(self.file, 3, ctypes.c_int64(offset), ctypes.c_int64(size))

    def scan(self):
        return iter([Entry(key, size, at) for key, (_, size, at) in self.places.items()])

    def hand_over(self, keys):
        if not self.passes_on:
            return None
        self.frozen = True
        return FrameFile(self.file, self.end, self.listed(keys))

    def listed(self, keys):
        here = [key for key in dict.fromkeys(keys) if key in self.places]
        return [PlacedFrame(key, *self.places[key][:2]) for key in here]

    def thaw(self):
        self.frozen = False
        self.free_late()
        if self.adopting:
            self.adopting = False
            self.free_rest()

    def free_late(self):
        for offset, size in self.late:
            self.punch(offset, size)
        self.late = []

    def free_rest(self):
        at = 0
        for offset, size, _ in sorted(self.places.values()):
            self.punch(at, offset - at)
            at = offset + whole(size)
        self.punch(at, self.end - at)

    def close(self):
        if not self.closed:
            self.closed = True
            os.close(self.file)


class LeavingContract(HandOverContract):
    Make = LeavingStore

    @pytest.fixture
    def make(self):
        return self.Make

    @pytest.fixture
    def private(self):
        store = self.Make()
        store.passes_on = False
        yield store
        store.close()


class TestTurnsTheOrderAround(LeavingContract):
    """What is worth most is listed as the oldest."""

    breaks = "handover.1"

    class Make(LeavingStore):
        def scan(self):
            return iter([entry._replace(stored=-entry.stored) for entry in super().scan()])


class TestLooksAPageTooFar(LeavingContract):
    """It takes offsets for those behind a page of its own."""

    breaks = "handover.1"

    class Make(LeavingStore):
        def place(self, offset):
            return offset + PAGE


class TestListsTheDeleted(LeavingContract):
    """What was deleted is listed with no bytes."""

    breaks = "handover.2"

    class Make(LeavingStore):
        def listed(self, keys):
            found = {key: self.places.get(key, (0, 0, 0.0)) for key in keys}
            return [PlacedFrame(key, *place[:2]) for key, place in found.items()]


class TestListsTwice(LeavingContract):
    """A key that is said twice is listed twice."""

    breaks = "handover.2"

    class Make(LeavingStore):
        def listed(self, keys):
            return [PlacedFrame(key, *self.places[key][:2]) for key in keys if key in self.places]


class TestListsInItsOwnOrder(LeavingContract):
    """The order of worth is lost: frames are listed as they lie."""

    breaks = "handover.2"

    class Make(LeavingStore):
        def listed(self, keys):
            return sorted(super().listed(keys), key=lambda frame: frame.offset)


class TestTellsAnEndTooSoon(LeavingContract):
    """The last frame lies behind what it says is the end."""

    breaks = "handover.2"

    class Make(LeavingStore):
        def hand_over(self, keys):
            return super().hand_over(keys)._replace(end=PAGE)


class TestTakesWritesWhoeverItIs(LeavingContract):
    """Being frozen is nothing to it."""

    breaks = "handover.3"

    class Make(LeavingStore):
        def refuses(self):
            return False


class TestTakesWritesAsAnHeir(LeavingContract):
    """What it was left it takes for its own at once."""

    breaks = "handover.3"

    class Make(LeavingStore):
        def refuses(self):
            return self.frozen and not self.adopting


class TestFreesAtOnce(LeavingContract):
    """A delete makes a hole, whoever else reads there."""

    breaks = "handover.4"

    class Make(LeavingStore):
        def free(self, offset, size):
            self.punch(offset, size)


class TestEmptiesItsFile(LeavingContract):
    """It gives its memory back when it is closed, also what is another's by now."""

    breaks = "handover.5"

    class Make(LeavingStore):
        def close(self):
            if not self.closed and not self.adopting:
                os.ftruncate(self.file, 0)
            super().close()


class TestStaysFrozen(LeavingContract):
    """Only a store that was left something can be thawed."""

    breaks = "handover.6"

    class Make(LeavingStore):
        def thaw(self):
            if self.adopting:
                super().thaw()


class TestFreesWhatItDidNotList(LeavingContract):
    """Taken back, it has lost what was not on the list."""

    breaks = "handover.6"

    class Make(LeavingStore):
        def hand_over(self, keys):
            file = super().hand_over(keys)
            self.places = {k: place for k, place in self.places.items() if k in keys}
            return file


class TestWritesFromTheBeginning(LeavingContract):
    """It has no frames of its own yet, so it begins at nought."""

    breaks = "handover.7"

    class Make(LeavingStore):
        def after(self, inherited):
            return 0


class TestCanBeLeftOnce(LeavingContract):
    """What was inherited is not handed on."""

    breaks = "handover.7"

    class Make(LeavingStore):
        def __init__(self, inherited=None):
            super().__init__(inherited)
            self.left = set(self.places)

        def listed(self, keys):
            return [frame for frame in super().listed(keys) if frame.key not in self.left]


class TestNeverFreesTheRest(LeavingContract):
    """What was not listed stays where it was."""

    breaks = "handover.8"

    class Make(LeavingStore):
        def free_rest(self):
            pass


class TestForgetsWhatWasDeleted(LeavingContract):
    """What is deleted before it is thawed is never freed."""

    breaks = "handover.8"

    class Make(LeavingStore):
        def free_late(self):
            self.late = []

        def free_rest(self):
            pass


class TestKeepsTheDescriptor(LeavingContract):
    """It works with the number that it was given."""

    breaks = "handover.9"

    class Make(LeavingStore):
        def copied(self, descriptor):
            return descriptor

        def close(self):
            self.closed = True


class TestFreezesForNothing(LeavingContract):
    """It says that it cannot, and takes no write any more."""

    breaks = "handover.10"

    class Make(LeavingStore):
        def hand_over(self, keys):
            self.frozen = True
            return super().hand_over(keys)
