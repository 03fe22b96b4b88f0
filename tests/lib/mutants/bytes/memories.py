"""Providers of memory that is too small, elsewhere, somebody else's, or not there."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import weakref

import pytest

from hexkv.contracts.memory import MemoryContract
from hexkv.ports import PAGE, InvalidRequest, PoolExhausted
from mutants.rows import Wrong, broken

LIMIT = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class PlainRegion:
    def __init__(self, mapping, size):
        self.mapping = mapping
        self.buffer = memoryview(mapping)[:size]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    def close(self):
        with contextlib.suppress(BufferError):  # the collector unmaps with the last view
            self.buffer.release()
            self.mapping.close()


class PlainMemory:
    """A correct provider, cut into small steps so that each can be broken alone."""

    Region = PlainRegion

    def allocate(self, size):
        self.check(size)
        return self.Region(self.map(-(-size // PAGE) * PAGE), size)

    def check(self, size):
        if size < 1:
            raise InvalidRequest("nothing")
        if size > LIMIT:
            raise PoolExhausted("too much")

    def map(self, size):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class PlainMemoryContract(MemoryContract):
    Make = PlainMemory

    @pytest.fixture
    def provider(self):
        return self.Make()


class TestAllocatesUnderAnotherName(PlainMemoryContract):
    """The port's method is missing."""

    breaks = "memory.1"

    class Make:
        reserve = PlainMemory.allocate


def rounds_down(self, size):
    self.check(size)
    return self.Region(self.map(max(size // PAGE * PAGE, PAGE)), size // PAGE * PAGE)


def gives_read_only_memory(self, real, size):
    region = real(size)
    region.buffer = region.buffer.toreadonly()
    return region


def begins_beside_a_page(self, real, size):
    region = real(size + 64)
    region.buffer = region.buffer[64:]
    region.address += 64
    return region


def names_another_address(self, real, size):
    region = real(size)
    region.address = id(region.mapping) // PAGE * PAGE
    return region


class TestGivesOneRegionTwice(PlainMemoryContract):
    """Regions are cut from one range whose next free byte is never moved on."""

    breaks = "memory.4"

    class Make(PlainMemory):
        def __init__(self):
            self.range = super().map(16 << 20)

        def map(self, size):
            return self.range if size <= len(self.range) else super().map(size)


def gives_nothing(self, real, size):
    real(max(size, 1))


def believes_what_it_is_granted(self, size):
    if size < 1:
        raise InvalidRequest("nothing")
    if size > 1 << 47:
        raise PoolExhausted("too much")


def believes_what_it_is_granted_map(self, size):
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE)


def lets_the_system_say_no(self, size):
    if size < 1:
        raise InvalidRequest("nothing")


class TestClosesOnce(PlainMemoryContract):
    """The second close closes what is no more."""

    breaks = "memory.7"

    class Make(PlainMemory):
        class Region(PlainRegion):
            closed = 0

            def close(self):
                self.closed += 1
                if self.closed == 2:
                    raise ValueError("closed")
                super().close()


def reuses_what_is_looked_at(self):
    self.free = []


def reuses_what_is_looked_at_allocate(self, real, size):
    region = real(size)
    free = self.free

    class Recycled:
        buffer, address = region.buffer, region.address

        def close(self):
            free.append(region.mapping)

    return Recycled()


def never_gives_back(self):
    self.mappings = []


def never_gives_back_map(self, real, size):
    self.mappings.append(real(size))
    self.mappings.append(memoryview(self.mappings[-1]))
    return self.mappings[-2]


class TestGivesUsedPagesBack(PlainMemoryContract):
    """Between two uses the process has no page of the region; the system still knows the bytes."""

    breaks = "memory.11"

    class Make(PlainMemory):
        def map(self, size):
            return mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)

        class Region(PlainRegion):
            @property
            def buffer(self):
                self.mapping.madvise(mmap.MADV_DONTNEED)
                return self.view

            @buffer.setter
            def buffer(self, view):
                self.view = view


class TestBacksByZeros(PlainMemoryContract):
    """Pages ahead of those in use are written to, whoever wrote to them before."""

    breaks = "memory.12"

    class Make(PlainMemory):
        class Region(PlainRegion):
            def prefault(self, used):
                ahead = self.buffer[used : used + (1 << 20)]
                ahead[:] = bytes(len(ahead))


class TestLeavesAThreadBehind(PlainMemoryContract):
    """What backs pages waits for more to do, also after the end."""

    breaks = "memory.12"

    class Make(PlainMemory):
        class Region(PlainRegion):
            def prefault(self, used):
                threading.Thread(target=threading.Event().wait, args=(10,), daemon=True).start()


def takes_sizes_for32_bits(self, real, size):
    low = size & 0xFFFFFFFF
    return real(low if size > LIMIT and low else size)


class MappedByHand:
    """Memory straight from the C library, which knows of nobody who looks at it."""

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t

    def __init__(self, mapping, size):
        private, anonymous = mmap.MAP_PRIVATE, mmap.MAP_ANONYMOUS
        access = mmap.PROT_READ | mmap.PROT_WRITE
        self.size = len(mapping)
        self.address = self.libc.mmap(None, self.size, access, private | anonymous, -1, 0)
        array = (ctypes.c_char * self.size).from_address(self.address)
        self.buffer = memoryview(array).cast("B")[:size]

    def close(self):
        self.size = self.size and self.libc.munmap(self.address, self.size)


class TestUnmapsWhatIsForgotten(PlainMemoryContract):
    """The region's end is the memory's, also where a view outlives it."""

    breaks = "memory.8"

    class Make(PlainMemory):
        class Region(MappedByHand):
            def __init__(self, mapping, size):
                super().__init__(mapping, size)
                weakref.finalize(self, self.libc.munmap, self.address, self.size)

            def close(self):
                pass


def reuses_in_turn(self):
    self.free = []


def reuses_in_turn_map(self, real, size):
    if len(self.free) > 2:
        return self.free.pop(0)[1]
    mapping = real(size)
    self.free = [(count + 1, old) for count, old in self.free]
    ripe = [old for count, old in self.free if count > 2 and len(old) == size]
    if ripe:
        self.free = [pair for pair in self.free if pair[1] is not ripe[0]]
        return ripe[0]
    return mapping


def reuses_in_turn_allocate(self, real, size):
    region = real(size)
    free = self.free

    class Recycled:
        buffer, address = region.buffer, region.address

        def close(self):
            free.append((0, region.mapping))

    return Recycled()


ROWS = {
    "memory.2 rounds down": Wrong(
        "Only whole pages are given, and the rest is forgotten.", allocate=rounds_down
    ),
    "memory.2 gives read only memory": Wrong(
        "The buffer cannot be written.", allocate=gives_read_only_memory
    ),
    "memory.3 begins beside a page": Wrong(
        "A header of the provider's own lies before the memory.", allocate=begins_beside_a_page
    ),
    "memory.3 names another address": Wrong(
        "The address is the mapping's object, not its memory.", allocate=names_another_address
    ),
    "memory.5 gives nothing": Wrong(
        "A region of no bytes is a page.",
        check=gives_nothing,
        map=lambda self, real, size: real(max(size, PAGE)),
    ),
    "memory.6 believes what it is granted": Wrong(
        "It asks for no more than addresses, and the system grants these.",
        check=believes_what_it_is_granted,
        map=believes_what_it_is_granted_map,
    ),
    "memory.6 lets the system say no": Wrong(
        "What the system raises is what the caller gets.", check=lets_the_system_say_no
    ),
    "memory.8 reuses what is looked at": Wrong(
        "Closed regions go to a list of free ones, whoever still looks at them.",
        __init__=reuses_what_is_looked_at,
        map=lambda self, real, size: self.free.pop() if self.free else real(size),
        allocate=reuses_what_is_looked_at_allocate,
    ),
    "memory.9 never gives back": Wrong(
        "Every mapping is kept in a list.", __init__=never_gives_back, map=never_gives_back_map
    ),
    "memory.6 takes sizes for32 bits": Wrong(
        "What a C library is told of a size is its lower half.", allocate=takes_sizes_for32_bits
    ),
    "memory.8 unmaps under views": Wrong(
        "Closing unmaps, whoever still looks.", Region=MappedByHand
    ),
    "memory.8 reuses in turn": Wrong(
        "A closed region waits for two others before it is given away again, and that is all.",
        __init__=reuses_in_turn,
        map=reuses_in_turn_map,
        allocate=reuses_in_turn_allocate,
    ),
}
globals().update(broken(__name__, PlainMemoryContract, PlainMemory, ROWS))
