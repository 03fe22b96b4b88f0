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
from mutants.rows import Wrong, broken


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


def lists_the_deleted(self, keys):
    found = {key: self.places.get(key, (0, 0, 0.0)) for key in keys}
    return [PlacedFrame(key, *place[:2]) for key, place in found.items()]


def lists_twice(self, keys):
    return [PlacedFrame(key, *self.places[key][:2]) for key in keys if key in self.places]


def frees_at_once(self, offset, size):
    self.punch(offset, size)


def empties_its_file(self, real):
    if not self.closed and not self.adopting:
        os.ftruncate(self.file, 0)
    real()


def stays_frozen(self, real):
    if self.adopting:
        real()


def frees_what_it_did_not_list(self, real, keys):
    file = real(keys)
    self.places = {k: place for k, place in self.places.items() if k in keys}
    return file


def can_be_left_once(self, real, inherited=None):
    real(inherited)
    self.left = set(self.places)


def can_be_left_once_listed(self, real, keys):
    return [frame for frame in real(keys) if frame.key not in self.left]


def forgets_what_was_deleted(self):
    self.late = []


def keeps_the_descriptor_close(self):
    self.closed = True


def freezes_for_nothing(self, real, keys):
    self.frozen = True
    return real(keys)


ROWS = {
    "handover.1 turns the order around": Wrong(
        "What is worth most is listed as the oldest.",
        scan=lambda self, real: iter([entry._replace(stored=-entry.stored) for entry in real()]),
    ),
    "handover.1 looks a page too far": Wrong(
        "It takes offsets for those behind a page of its own.",
        place=lambda self, offset: offset + PAGE,
    ),
    "handover.2 lists the deleted": Wrong(
        "What was deleted is listed with no bytes.", listed=lists_the_deleted
    ),
    "handover.2 lists twice": Wrong(
        "A key that is said twice is listed twice.", listed=lists_twice
    ),
    "handover.2 lists in its own order": Wrong(
        "The order of worth is lost: frames are listed as they lie.",
        listed=lambda self, real, keys: sorted(real(keys), key=lambda frame: frame.offset),
    ),
    "handover.2 tells an end too soon": Wrong(
        "The last frame lies behind what it says is the end.",
        hand_over=lambda self, real, keys: real(keys)._replace(end=PAGE),
    ),
    "handover.3 takes writes whoever it is": Wrong(
        "Being frozen is nothing to it.", refuses=lambda self: False
    ),
    "handover.3 takes writes as an heir": Wrong(
        "What it was left it takes for its own at once.",
        refuses=lambda self: self.frozen and not self.adopting,
    ),
    "handover.4 frees at once": Wrong(
        "A delete makes a hole, whoever else reads there.", free=frees_at_once
    ),
    "handover.5 empties its file": Wrong(
        "It gives its memory back when it is closed, also what is another's by now.",
        close=empties_its_file,
    ),
    "handover.6 stays frozen": Wrong(
        "Only a store that was left something can be thawed.", thaw=stays_frozen
    ),
    "handover.6 frees what it did not list": Wrong(
        "Taken back, it has lost what was not on the list.", hand_over=frees_what_it_did_not_list
    ),
    "handover.7 writes from the beginning": Wrong(
        "It has no frames of its own yet, so it begins at nought.", after=lambda self, inherited: 0
    ),
    "handover.7 can be left once": Wrong(
        "What was inherited is not handed on.",
        __init__=can_be_left_once,
        listed=can_be_left_once_listed,
    ),
    "handover.8 never frees the rest": Wrong(
        "What was not listed stays where it was.", free_rest=lambda self: None
    ),
    "handover.8 forgets what was deleted": Wrong(
        "What is deleted before it is thawed is never freed.",
        free_late=forgets_what_was_deleted,
        free_rest=lambda self: None,
    ),
    "handover.9 keeps the descriptor": Wrong(
        "It works with the number that it was given.",
        copied=lambda self, descriptor: descriptor,
        close=keeps_the_descriptor_close,
    ),
    "handover.10 freezes for nothing": Wrong(
        "It says that it cannot, and takes no write any more.", hand_over=freezes_for_nothing
    ),
}
globals().update(broken(__name__, LeavingContract, LeavingStore, ROWS))
