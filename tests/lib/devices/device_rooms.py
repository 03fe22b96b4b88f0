"""Memory that stands for a device's, and a store's frames read into it."""

import mmap
import os
from ctypes import addressof, c_char

from hexkv.contracts.doubles import deadline
from hexkv.ports import (
    PAGE,
    DeviceRange,
    Failed,
    Hit,
    Item,
    Miss,
    Reason,
    Stored,
    StoreError,
    TimedOut,
)


class Memory:
    """What stands for a device's memory: pages of this process."""

    def __init__(self, size=4 << 20):
        self.map = mmap.mmap(-1, size)
        self.base, self.size = addressof(c_char.from_buffer(self.map)), size

    def range(self, at, length):
        return DeviceRange(self.base, self.size, at, length)


def past_the_host(store):
    """*store*, whose frames come by way of a device wherever they have more than a page."""
    host = store.read

    def read(keys, sink, deadline):
        return [read_one(index, key, sink, deadline) for index, key in enumerate(keys)]

    def read_one(index, key, sink, deadline):
        if deadline.expired:
            return TimedOut()
        try:
            file = store.files.open_file(key)
        except StoreError as error:
            return Failed(error)
        if file is None:
            return Miss()
        size = os.fstat(file).st_size
        os.close(file)
        if size <= PAGE:
            (outcome,) = host([key], _At(index, sink), deadline)
            return outcome
        room = sink.room(index, size)
        if room is None:
            return Miss(Reason.REFUSED)
        memory, page = Memory(size), memoryview(bytearray(PAGE))
        outcome = store.read_to_device(key, page, memory.range(0, size - PAGE), deadline)
        if outcome == Miss(Reason.REFUSED):  # the frame was replaced by one of another length
            (outcome,) = host([key], _At(index, sink), deadline)
        elif isinstance(outcome, Hit):
            room[:PAGE], room[PAGE:] = page, memory.map[: size - PAGE]
        return outcome

    store.read = read
    return store


class _At:
    """A sink of which a batch of one is another place."""

    def __init__(self, index, sink):
        self.index, self.sink = index, sink

    def room(self, _, size):
        return self.sink.room(self.index, size)

    def filled(self, _, upto):
        self.sink.filled(self.index, upto)


def put(store, key, size):
    frame = os.urandom(size)
    assert store.write([Item(key, memoryview(frame))], deadline()) == [Stored(size)]
    return frame


def fetch(store, key, memory, at, length, until=None):
    page = memoryview(bytearray(PAGE))
    outcome = store.read_to_device(key, page, memory.range(at, length), until or deadline())
    return outcome, bytes(page) + memory.map[at : at + length]
