"""Anonymous pages as the pool's memory. Put your kind of pages in their place."""

from __future__ import annotations

import ctypes
import mmap

from hexkv.plugins.support.available import available_bytes
from hexkv.plugins.support.mapped import whole_pages
from hexkv.ports import MemoryProvider, MemoryRegion, PoolExhausted


class Region:
    """One mapping, whose pages the system backs by memory as they are used."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer = memoryview(self._map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def buffer(self) -> memoryview:
        return self._buffer

    @property
    def address(self) -> int:
        return self._address

    def close(self) -> None:
        try:
            self._buffer.release()
            self._map.close()
        except BufferError:
            pass  # somebody looks at it: it is unmapped with the last view, never before


class AcmeMemory:
    """A MemoryProvider; the pool's memory is allocated once for each engine."""

    def allocate(self, size: int) -> Region:
        size = whole_pages(size, available_bytes())
        try:
            return Region(size)
        except OSError as error:
            raise PoolExhausted(f"{size:,} bytes were refused: {error.strerror}") from error


def _is_a_provider(provider: AcmeMemory) -> MemoryProvider:
    return provider  # a type checker checks here that AcmeMemory has the port's methods


def _is_a_region(region: Region) -> MemoryRegion:
    return region  # likewise
