"""The common parts of memory providers: available sizes, and backed pages."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys

from hexkv.ports import InvalidRequest, PoolExhausted, Registrar

_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` (Linux 5.14), which Python does not name."""

_STEP = 2 << 20


class RegistrableMapping(mmap.mmap):
    """A mapping that is unregistered just before it is unmapped.

    It is not closed but dropped: the last view of it, or the driver, may still use it.
    """

    _registered: tuple[Registrar, int, int] | None = None
    """The registrar, the address, and the process that registered it."""

    @property
    def address(self) -> int:
        """The address of its first byte."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self))

    def register(self, registrar: Registrar) -> None:
        """See :class:`hexkv.ports.Registrable`."""
        address = self.address
        # Before: an interrupt may come behind the call, and must not leave unmapped memory pinned.
        self._registered = registrar, address, os.getpid()
        try:
            registrar.register(address, len(self))
        except OSError:
            self._registered = None
            raise

    def __del__(self) -> None:
        if self._registered is None or sys.is_finalizing():
            return  # a process that ends takes its registrations along; the driver may be gone
        registrar, address, process = self._registered
        if process == os.getpid():  # a forked child has none, and may not call the driver
            registrar.unregister(address)


def whole_pages(size: int, available: int, what: str = "") -> int:
    """Return *size* in whole pages, if that many bytes are *available*.

    Checked beforehand, for the system grants any mapping and kills the process that uses it.

    Args:
        size: in bytes.
        available: bytes.
        what: ends the message about too few of them, unless they are any memory.

    Raises:
        InvalidRequest: the size is invalid.
        PoolExhausted: there are not enough.
    """
    if size < 1:
        raise InvalidRequest(f"a memory region of {size} bytes means nothing")
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if size > available:
        raise PoolExhausted(
            f"a memory region of {size:,} bytes is wanted, and {available:,} are available{what}"
        )
    return size


def advise_huge(mapping: mmap.mmap) -> None:
    """Ask for huge pages, which are backed seven times as fast."""
    if sys.platform == "linux":
        _advise(mapping, mmap.MADV_HUGEPAGE)


def touch(mapping: mmap.mmap) -> None:
    """Back every page now: the first copy into a fresh page costs four times as much."""
    if sys.platform == "linux" and _advise(mapping, _POPULATE_WRITE):
        return
    # Whole runs of zeros: as fast as the kernel's own zeroing, and 8 times as fast as a
    # strided write of one byte for each page.
    zeros = bytes(_STEP)
    with memoryview(mapping) as buffer:
        for start in range(0, len(buffer), _STEP):
            end = min(start + _STEP, len(buffer))
            buffer[start:end] = zeros[: end - start]


def populate(address: int, size: int) -> None:
    """Back a range of whole pages by memory. Changes no byte, and other threads keep running.

    Raises:
        OSError: the system does not support it, or has not enough memory.
    """
    # ``mmap.madvise`` keeps the interpreter's lock.
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    if madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _POPULATE_WRITE):
        raise OSError(ctypes.get_errno(), "madvise")


def _advise(mapping: mmap.mmap, advice: int) -> bool:
    """Return True if the kernel supports *advice*, and has taken it."""
    try:
        mapping.madvise(advice)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True
