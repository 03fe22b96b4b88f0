"""Buffers of more than 4 GiB that take no memory until they are written."""

from __future__ import annotations

import mmap

BEYOND = 1 << 32
"""The first number that does not fit into 32 bits."""


def sparse(size: int) -> memoryview:
    """*size* bytes of zeros, writable, that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return memoryview(mmap.mmap(-1, size, flags=flags))
