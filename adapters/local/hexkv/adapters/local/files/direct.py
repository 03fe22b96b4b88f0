"""Direct I/O: between a file and our memory, past the system's page cache."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
from contextlib import suppress

from hexkv.adapters.local.files.nofollow import open_file
from hexkv.plugins.file_store import close_read
from hexkv.ports import PAGE

REFUSALS = {errno.EINVAL, errno.EOPNOTSUPP}
"""Errors of a file system that cannot do direct I/O, or not with whole pages."""


def aligned(buffer: memoryview, offset: int) -> bool:
    """Return True if *buffer* can be read or written directly at *offset* of a file.

    It must consist of whole pages in memory and in the file: more than most disks require (512
    bytes), and the pool's blocks do so. The address of a read-only buffer cannot be known, so such
    buffers do not count as aligned.
    """
    size = buffer.nbytes
    if not size or size % PAGE or offset % PAGE or buffer.readonly:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % PAGE == 0


def go_direct(file: int) -> None:
    """Let *file*, an open one, bypass the page cache from now on.

    Set on the open file rather than when it is opened: a file system that refuses would
    else have created an empty file first.

    Raises:
        OSError: with one of ``REFUSALS``, if its file system cannot do that.
    """
    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)


def go_through_cache(file: int) -> bool:
    """Let *file* use the page cache. Return True if it bypassed it before."""
    if sys.platform != "linux":
        return False
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    if flags & os.O_DIRECT:
        fcntl.fcntl(file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return bool(flags & os.O_DIRECT)


def read_on(file: int) -> None:
    """Let the page cache read twice as far ahead in *file*, which is about to be read whole."""
    if sys.platform == "linux":
        with suppress(OSError):  # a file system that cannot be advised
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def try_direct(path: str) -> None:
    """Read the first page of a file directly.

    Raises:
        OSError: with one of ``REFUSALS``, if its file system cannot do that.
    """
    file = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        go_direct(file)
        with mmap.mmap(-1, PAGE) as page:
            os.preadv(file, [page], 0)
    finally:
        close_read(file)
