"""Memory that stands for a device's, and a store's frames read into it."""

import mmap
import os
from ctypes import addressof, c_char

from hexkv.contracts.doubles import deadline
from hexkv.ports import PAGE, DeviceRange, Item, Stored


class Memory:
    """What stands for a device's memory: pages of this process."""

    def __init__(self, size=4 << 20):
        self.map = mmap.mmap(-1, size)
        self.base, self.size = addressof(c_char.from_buffer(self.map)), size

    def range(self, at, length):
        return DeviceRange(self.base, self.size, at, length)


def put(store, key, size):
    frame = os.urandom(size)
    assert store.write([Item(key, memoryview(frame))], deadline()) == [Stored(size)]
    return frame


def fetch(store, key, memory, at, length, until=None):
    page = memoryview(bytearray(PAGE))
    outcome = store.read_to_device(key, page, memory.range(at, length), until or deadline())
    return outcome, bytes(page) + memory.map[at : at + length]
