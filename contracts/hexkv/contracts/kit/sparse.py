"""Buffers of more than 2 or 4 GiB that take little memory."""

from __future__ import annotations

import ctypes
import mmap
import os

BEYOND = 1 << 32
"""The first number that does not fit into 32 bits."""

_WHEEL = 16 << 20
"""Bytes that the pages of a :func:`folded` buffer share."""


def sparse(size: int) -> memoryview:
    """*size* bytes of zeros, writable, that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return memoryview(mmap.mmap(-1, size, flags=flags))


def folded(size: int, behind: int) -> memoryview:
    """*size* writable bytes, of which the first up to *behind* share 16 MiB of memory.

    They have the bytes written last to any of these places. The bytes behind them are their own.

    Raises:
        OSError: the system does not map a page twice.
    """
    view = sparse(size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    wheel = os.memfd_create("wheel", os.MFD_CLOEXEC)
    try:
        os.ftruncate(wheel, _WHEEL)
        for start in range(0, behind // _WHEEL * _WHEEL, _WHEEL):
            where = ctypes.c_void_p(address + start)
            how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED
            found = library.mmap(where, ctypes.c_size_t(_WHEEL), *how, wheel, ctypes.c_long(0))
            if found != address + start:
                raise OSError(ctypes.get_errno(), "a page cannot be mapped twice")
    finally:
        os.close(wheel)
    return view


_FIXED = 0x10
"""``MAP_FIXED``, which the module ``mmap`` lacks; of Linux."""
