"""Memory that processes share: a file without a name whose size is sealed, its pages backed.

No process that maps it can make it shorter, so no access by another process ends in ``SIGBUS``. It
is freed with its last mapping, in whatever order processes end. In a process that uses a GPU its
driver registers each mapping, and copies from and to it at the bus's speed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from fcntl import F_ADD_SEALS, fcntl
from pathlib import Path

from hexkv.adapters.net.unix import SEALS, is_sealed
from hexkv.plugins.support.available import available_bytes
from hexkv.plugins.support.mapped import RegistrableMapping, advise_huge, touch, whole_pages
from hexkv.ports import (
    REGISTRATIONS,
    ConfigError,
    MemoryProvider,
    MemoryRegion,
    PoolExhausted,
    SupportsMapping,
)

_HUGE = 2 << 20
_OF_HUGE = " in free huge pages of 2 MiB (vm.nr_hugepages is how many are reserved)"


class SharedRegion:
    """A mapping of a sealed memfd, and the descriptor by which others map it."""

    @classmethod
    def of(cls, descriptor: int, size: int) -> SharedRegion:
        """Return another process's region; the caller keeps *descriptor*.

        Raises:
            ConfigError, OSError: as :func:`map_sealed`.
        """
        region = cls.__new__(cls)
        region.descriptor = os.dup(descriptor)
        try:
            region._show(map_sealed(region.descriptor, size))
        except BaseException:
            os.close(region.descriptor)
            raise
        return region

    def __init__(self, size: int, *, huge_pages: bool) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        if huge_pages:
            flags |= os.MFD_HUGETLB | os.MFD_HUGE_2MB
        self.descriptor = os.memfd_create("hexkv pool", flags)

        try:
            os.ftruncate(self.descriptor, size)
            mapping = RegistrableMapping(self.descriptor, size)
            if not huge_pages:
                advise_huge(mapping)
            touch(mapping)
            fcntl(self.descriptor, F_ADD_SEALS, SEALS)
            REGISTRATIONS.offer(mapping)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._show(mapping)

    def _show(self, mapping: RegistrableMapping) -> None:
        self._buffer = memoryview(mapping)
        self._address = mapping.address

    @property
    def buffer(self) -> memoryview:
        return self._buffer

    @property
    def address(self) -> int:
        return self._address

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        # The buffer alone holds the mapping, which ends with its last view.
        self._buffer = memoryview(b"")


class SharedMemory:
    """Gives regions that other processes can map.

    Args:
        huge_pages: take them from the huge pages that the operator reserved (``vm.nr_hugepages``),
            with no fallback to plain pages.
        available: returns the bytes of plain pages that the machine can give.
    """

    def __init__(
        self, *, huge_pages: bool = False, available: Callable[[], int] = available_bytes
    ) -> None:
        self._huge_pages = huge_pages
        self._available = reserved_bytes if huge_pages else available

    def allocate(self, size: int) -> SharedRegion:
        available, huge = self._available(), _OF_HUGE if self._huge_pages else ""
        size = whole_pages(region_bytes(size, huge_pages=self._huge_pages), available, huge)
        try:
            return SharedRegion(size, huge_pages=self._huge_pages)
        except OSError as error:
            raise PoolExhausted(
                f"a shared region of {size:,} bytes of the {available:,} that are available{huge}"
                f" was refused: {error.strerror}"
            ) from error


def region_bytes(size: int, *, huge_pages: bool) -> int:
    """Return the bytes of a region of at least *size* bytes: whole pages."""
    page = _HUGE if huge_pages else mmap.PAGESIZE
    return -(-size // page) * page


def reserved_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of huge pages that are reserved and free."""
    folder = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    try:
        free = int((folder / "free_hugepages").read_text())
        return max(0, free - int((folder / "resv_hugepages").read_text())) * _HUGE
    except (OSError, ValueError):
        return 0


def map_sealed(descriptor: int, size: int) -> RegistrableMapping:
    """Map *size* bytes of another process's region, every page in place.

    If this process uses a GPU, the mapping is registered before this returns.

    Raises:
        ConfigError: it is shorter, or not sealed against shrinking.
        OSError: the system refuses the mapping.
    """
    if not is_sealed(descriptor, size):
        raise ConfigError("the node's memory is not sealed, or shorter than announced")
    # Each page would fault once more here: 1.4 s for 512 MiB, 0.12 s in one call.
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    mapping = RegistrableMapping(descriptor, size, flags=flags)
    advise_huge(mapping)
    REGISTRATIONS.offer(mapping)
    return mapping


def _keeps_the_port(
    provider: SharedMemory, region: SharedRegion
) -> tuple[MemoryProvider, MemoryRegion, SupportsMapping]:
    return provider, region, region  # mypy checks here that both keep the port's promises
