"""Memory for the block pool: anonymous pages of this process, huge where the system offers them."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from threading import Lock, Thread

from hexkv.plugins.support.available import available_bytes
from hexkv.plugins.support.mapped import advise_huge, populate, touch, whole_pages
from hexkv.ports import MemoryProvider, MemoryRegion, PoolExhausted, SupportsPrefault

AHEAD = 64 << 20
"""Bytes that a thread backs ahead of the used ones: no store of less than that is slowed."""

_STEP = 2 << 20


class MmapRegion:
    """An anonymous private mapping, backed page by page as it is used unless *prefault*."""

    def __init__(self, size: int, *, huge_pages: bool, prefault: bool) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer = memoryview(self._map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if huge_pages:
            advise_huge(self._map)
        if prefault:
            touch(self._map)
        self._lock = Lock()
        self._backed = size if prefault or sys.platform != "linux" else 0
        self._wanted = 0
        self._worker: Thread | None = None
        self._working = False

    @property
    def buffer(self) -> memoryview:
        return self._buffer

    @property
    def address(self) -> int:
        return self._address

    def prefault(self, used: int) -> None:
        with self._lock:
            if self._working or self._backed >= min(used + AHEAD // 2, len(self._map)):
                return
            self._wanted = min(-(-(used + AHEAD) // _STEP) * _STEP, len(self._map))
            worker = Thread(target=self._work, name="hexkv-prefault")
            try:
                worker.start()
            except RuntimeError:  # no thread can be started: the first use backs the pages
                return
            self._worker, self._working = worker, True

    def _work(self) -> None:
        """Back pages up to the wanted offset, in a thread that ends there."""
        while True:
            with self._lock:
                start, end = self._backed, min(self._backed + _STEP, self._wanted)
                if start >= end:
                    self._working = False
                    return
                self._backed = end
            try:
                populate(self._address + start, end - start)
            except OSError:  # a kernel older than 5.14, or short of memory: the first use does it
                self._backed = len(self._map)

    def close(self) -> None:
        """Free the memory, now or when the last view of it is collected.

        Memory that still has a view is never unmapped: that would turn a late access into a crash
        of the process.
        """
        with self._lock:
            self._wanted, self._backed = 0, max(self._backed, self._wanted)
        if self._worker is not None:
            self._worker.join()
        try:
            self._buffer.release()
            self._map.close()
        except BufferError:
            pass  # views exist; the garbage collector unmaps with the last of them


class MmapMemory:
    """Allocates regions of plain host memory.

    Args:
        huge_pages: ask for transparent huge pages: they are backed seven times as fast.
        prefault: back every page in :meth:`allocate`, not at its first use.
        available: how many bytes the machine has left.
    """

    def __init__(
        self,
        *,
        huge_pages: bool = True,
        prefault: bool = False,
        available: Callable[[], int] = available_bytes,
    ) -> None:
        self._huge_pages = huge_pages
        self._prefault = prefault
        self._available = available

    def allocate(self, size: int) -> MmapRegion:
        available = self._available()
        size = whole_pages(size, available)
        try:
            return MmapRegion(size, huge_pages=self._huge_pages, prefault=self._prefault)
        except OSError as error:
            raise PoolExhausted(
                f"a memory region of {size:,} bytes of the {available:,} that are available "
                f"was refused: {error.strerror}"
            ) from error


def _keeps_the_port(
    provider: MmapMemory, region: MmapRegion
) -> tuple[MemoryProvider, MemoryRegion]:
    _ahead: SupportsPrefault = region
    return provider, region  # mypy checks here that both keep the port's promises
