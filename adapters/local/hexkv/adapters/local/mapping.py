"""Memory for the block pool: anonymous pages of this process, huge where the system offers them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

from hexkv.plugins.available import available_bytes
from hexkv.plugins.mapped import advise_huge, touch, whole_pages
from hexkv.ports import MemoryProvider, MemoryRegion, PoolExhausted


class MmapRegion:
    """An anonymous private mapping whose pages are all backed by memory."""

    def __init__(self, size: int, *, huge_pages: bool) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer = memoryview(self._map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if huge_pages:
            advise_huge(self._map)
        touch(self._map)

    @property
    def buffer(self) -> memoryview:
        return self._buffer

    @property
    def address(self) -> int:
        return self._address

    def close(self) -> None:
        """Give the memory back, now or when the last view of it is collected.

        Memory that something still looks at is never unmapped: that would turn a late
        access into a crash of the process.
        """
        try:
            self._buffer.release()
            self._map.close()
        except BufferError:
            pass  # views exist; the garbage collector unmaps with the last of them


class MmapMemory:
    """Gives regions of plain host memory, every page touched once.

    Args:
        huge_pages: ask for transparent huge pages: they are backed seven times as fast.
        available: how many bytes the machine has to give.
    """

    def __init__(
        self, *, huge_pages: bool = True, available: Callable[[], int] = available_bytes
    ) -> None:
        self._huge_pages = huge_pages
        self._available = available

    def allocate(self, size: int) -> MmapRegion:
        available = self._available()
        size = whole_pages(size, available)
        try:
            return MmapRegion(size, huge_pages=self._huge_pages)
        except OSError as error:
            raise PoolExhausted(
                f"a memory region of {size:,} bytes of the {available:,} that are available "
                f"was refused: {error.strerror}"
            ) from error


def _keeps_the_port(
    provider: MmapMemory, region: MmapRegion
) -> tuple[MemoryProvider, MemoryRegion]:
    return provider, region  # mypy checks here that both keep the port's promises
