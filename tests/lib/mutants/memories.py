"""Providers of memory that is too small, elsewhere, somebody else's, or not there."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import weakref

import pytest

from hexkv.contracts.memory import MemoryContract
from hexkv.ports import PAGE, InvalidRequest, PoolExhausted

LIMIT = 1 << 40


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


class TestRoundsDown(PlainMemoryContract):
    """Only whole pages are given, and the rest is forgotten."""

    breaks = "memory.2"

    class Make(PlainMemory):
        def allocate(self, size):
            self.check(size)
            return self.Region(self.map(max(size // PAGE * PAGE, PAGE)), size // PAGE * PAGE)


class TestGivesReadOnlyMemory(PlainMemoryContract):
    """The buffer cannot be written."""

    breaks = "memory.2"

    class Make(PlainMemory):
        def allocate(self, size):
            region = super().allocate(size)
            region.buffer = region.buffer.toreadonly()
            return region


class TestBeginsBesideAPage(PlainMemoryContract):
    """A header of the provider's own lies before the memory."""

    breaks = "memory.3"

    class Make(PlainMemory):
        def allocate(self, size):
            region = super().allocate(size + 64)
            region.buffer = region.buffer[64:]
            region.address += 64
            return region


class TestNamesAnotherAddress(PlainMemoryContract):
    """The address is the mapping's object, not its memory."""

    breaks = "memory.3"

    class Make(PlainMemory):
        def allocate(self, size):
            region = super().allocate(size)
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


class TestGivesNothing(PlainMemoryContract):
    """A region of no bytes is a page."""

    breaks = "memory.5"

    class Make(PlainMemory):
        def check(self, size):
            super().check(max(size, 1))

        def map(self, size):
            return super().map(max(size, PAGE))


class TestLetsTheSystemSayNo(PlainMemoryContract):
    """What the system raises is what the caller gets."""

    breaks = "memory.6"

    class Make(PlainMemory):
        def check(self, size):
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


class TestReusesWhatIsLookedAt(PlainMemoryContract):
    """Closed regions go to a list of free ones, whoever still looks at them."""

    breaks = "memory.8"

    class Make(PlainMemory):
        def __init__(self):
            self.free = []

        def map(self, size):
            return self.free.pop() if self.free else super().map(size)

        def allocate(self, size):
            region = super().allocate(size)
            free = self.free

            class Recycled:
                buffer, address = region.buffer, region.address

                def close(self):
                    free.append(region.mapping)

            return Recycled()


class TestNeverGivesBack(PlainMemoryContract):
    """Every mapping is kept in a list."""

    breaks = "memory.9"

    class Make(PlainMemory):
        def __init__(self):
            self.mappings = []

        def map(self, size):
            self.mappings.append(super().map(size))
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


class TestTakesSizesFor32Bits(PlainMemoryContract):
    """What a C library is told of a size is its lower half."""

    breaks = "memory.6"

    class Make(PlainMemory):
        def allocate(self, size):
            low = size & 0xFFFFFFFF
            return super().allocate(low if size > LIMIT and low else size)


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


class TestUnmapsUnderViews(PlainMemoryContract):
    """Closing unmaps, whoever still looks."""

    breaks = "memory.8"

    class Make(PlainMemory):
        Region = MappedByHand


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


class TestReusesInTurn(PlainMemoryContract):
    """A closed region waits for two others before it is given away again, and that is all."""

    breaks = "memory.8"

    class Make(PlainMemory):
        def __init__(self):
            self.free = []

        def map(self, size):
            if len(self.free) > 2:
                return self.free.pop(0)[1]
            mapping = super().map(size)
            self.free = [(count + 1, old) for count, old in self.free]
            ripe = [old for count, old in self.free if count > 2 and len(old) == size]
            if ripe:
                self.free = [pair for pair in self.free if pair[1] is not ripe[0]]
                return ripe[0]
            return mapping

        def allocate(self, size):
            region = super().allocate(size)
            free = self.free

            class Recycled:
                buffer, address = region.buffer, region.address

                def close(self):
                    free.append((0, region.mapping))

            return Recycled()
