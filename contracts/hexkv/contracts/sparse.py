"""Lengths beyond what 32 bits hold, without the memory for them."""

from __future__ import annotations

import mmap

BEYOND = 1 << 32
"""The first number that 32 bits do not hold."""


def sparse(size: int) -> memoryview:
    """*size* bytes of zeros, writable, that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return memoryview(mmap.mmap(-1, size, flags=flags))
