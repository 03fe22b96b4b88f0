"""Frames in an unnamed file, which another process can take over."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Collection, Iterable
from threading import RLock
from weakref import finalize

from hexkv.ports import PAGE

log = logging.getLogger(__name__)

_PUNCH_HOLE = 0x02 | 0x01
"""``FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE``, which Python does not name."""


class FrameMemory:
    """A memfd of which each page is used once: freed pages become a hole, and stay one.

    So nothing is ever written where a late reader or writer, in this process or in the one before,
    may still be. A file has room for decades of that. Frames are copied by system calls, which need
    no mapping and no descriptor for each of them, and run beside the interpreter's lock.

    Args:
        descriptor: of the memory that another process passed on; it is duplicated.
        end: bytes: the offset after which frames may lie. One thread at a time reserves.
    """

    def __init__(self, descriptor: int | None = None, end: int = 0) -> None:
        if descriptor is None:
            self.descriptor = os.memfd_create("hexkv heap", os.MFD_CLOEXEC)
        else:
            self.descriptor = os.dup(descriptor)
        self.end = end
        finalize(self, os.close, self.descriptor).atexit = False  # readers at exit may need it
        # An extent may be collected, and so freed, wherever this lock is held.
        self._lock = RLock()
        self._frozen: Collection[int] = ()
        self._late: list[tuple[int, int]] = []

    def reserve(self, size: int) -> Extent:
        """Reserve pages that have not been used before. Takes no memory yet."""
        start, self.end = self.end, self.end + _pages(size)
        return Extent(self, start, size)

    def freeze(self, offsets: Collection[int]) -> None:
        """Keep the extents that begin at *offsets* from being freed until :meth:`thaw`."""
        with self._lock:
            self._frozen = offsets

    def thaw(self, kept: Iterable[Extent] | None = None) -> None:
        """Free the extents whose freeing was delayed and, if *kept* is given, all that it lacks."""
        with self._lock:
            late, self._late, self._frozen = self._late, [], ()
        if kept is not None:
            late += self._holes(kept)
        for start, size in late:
            self._punch(start, size)

    def free(self, start: int, size: int) -> None:
        """Free the pages of an extent, or delay that while it is frozen."""
        with self._lock:
            if start in self._frozen:
                self._late.append((start, size))
                return
        self._punch(start, size)

    def _holes(self, kept: Iterable[Extent]) -> list[tuple[int, int]]:
        """Return the gaps between extents up to the end of the used pages: start and bytes."""
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
        except OSError as error:  # for instance if the file has been made read-only
            log.warning("heap: %d bytes stay taken: %s", _pages(size), error)


class Extent:
    """The pages of one frame, freed with the last reference, so that a reader can finish."""

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
        """Fill *into* with the frame's bytes from *start* on. False if they do not exist."""
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
