"""Frames in a file without a name, which another process can go on with."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Collection, Iterable
from threading import RLock
from weakref import finalize

from hexkv.ports import PAGE

log = logging.getLogger("hexkv")

_PUNCH_HOLE = 0x02 | 0x01
"""``FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE``, which Python does not name."""


class FrameMemory:
    """A memfd of which each page is used once: what is freed becomes a hole, and stays one.

    So nothing is ever written where a late reader or writer, in this process or in the one before,
    may still be. A file has room for decades of that. Frames are copied by system calls, which
    need no mapping and no descriptor for each of them, and run beside the interpreter's lock.

    Args:
        descriptor: of the memory that another process handed over; a copy of it is taken.
        end: bytes: where frames may lie from. One thread at a time reserves.
    """

    def __init__(self, descriptor: int | None = None, end: int = 0) -> None:
        if descriptor is None:
            self.descriptor = os.memfd_create("hexkv heap", os.MFD_CLOEXEC)
        else:
            self.descriptor = os.dup(descriptor)
        self.end = end
        finalize(self, os.close, self.descriptor).atexit = False  # what runs then may still read
        # An extent may be collected, and so freed, wherever this lock is held.
        self._lock = RLock()
        self._frozen: Collection[int] = ()
        self._late: list[tuple[int, int]] = []

    def reserve(self, size: int) -> Extent:
        """Pages of which none has been used. Takes no memory yet."""
        start, self.end = self.end, self.end + _pages(size)
        return Extent(self, start, size)

    def freeze(self, offsets: Collection[int]) -> None:
        """From now on do not free the extents that begin at *offsets*."""
        with self._lock:
            self._frozen = offsets

    def thaw(self, kept: Iterable[Extent] | None = None) -> None:
        """Free what was to be freed meanwhile, and all that is not of *kept*, if that is given."""
        with self._lock:
            late, self._late, self._frozen = self._late, [], ()
        if kept is not None:
            late += self._holes(kept)
        for start, size in late:
            self._punch(start, size)

    def free(self, start: int, size: int) -> None:
        """Give the pages of an extent back, or note that they are to be."""
        with self._lock:
            if start in self._frozen:
                self._late.append((start, size))
                return
        self._punch(start, size)

    def _holes(self, kept: Iterable[Extent]) -> list[tuple[int, int]]:
        """What lies between extents, in front of where frames may lie from: start and bytes."""
        found, at = [], 0
        for extent in sorted(kept, key=lambda extent: extent.start):
            found.append((at, extent.start - at))
            at = extent.start + _pages(len(extent))
        return [*found, (at, self.end - at)]

    def _punch(self, start: int, size: int) -> None:
        if size <= 0:
            return
        try:
            _fallocate(self.descriptor, _PUNCH_HOLE, start, _pages(size))
        except OSError as error:  # of a file that somebody made read-only, for instance
            log.warning("heap: %d bytes stay taken: %s", _pages(size), error)


class Extent:
    """The pages of one frame, freed with the last reference: who reads it still does so."""

    def __init__(self, memory: FrameMemory, start: int, size: int) -> None:
        self.start = start
        self._memory = memory
        self._size = size

    def __len__(self) -> int:
        return self._size

    def fill(self, frame: memoryview) -> Extent:
        """Copy *frame* here.

        Raises:
            OSError: the system has no memory.
        """
        done = 0
        while done < self._size:
            done += os.pwrite(self._memory.descriptor, frame[done:], self.start + done)
        return self

    def copy(self, start: int, into: memoryview) -> bool:
        """Fill *into* from the byte *start* of the frame on. False if that is not there."""
        done = 0
        while done < len(into):
            at = self.start + start + done
            count = os.preadv(self._memory.descriptor, [into[done:]], at)
            if not count:
                return False
            done += count
        return True

    def __del__(self) -> None:
        self._memory.free(self.start, self._size)


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _fallocate(descriptor: int, mode: int, start: int, size: int) -> None:
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    if fallocate(descriptor, mode, ctypes.c_int64(start), ctypes.c_int64(size)):
        raise OSError(ctypes.get_errno(), "fallocate")
