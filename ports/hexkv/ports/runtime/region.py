"""The memory of the block pool: one long region, and its provider."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class MemoryRegion(Protocol):
    """One long range of memory, owned by the caller that allocated it."""

    @property
    def buffer(self) -> memoryview:
        """The range: writable, contiguous, of format ``B``, aligned to ``frame.PAGE``."""
        ...

    @property
    def address(self) -> int:
        """Start address of the range, for registration with a device or a network card."""
        ...

    def close(self) -> None:
        """Release the memory. Calling it twice is allowed.

        No views of it should be left. Memory that a view still shows is released with the last
        view, never before: a late access must not reach memory of another use.
        """
        ...


@runtime_checkable
class MemoryProvider(Protocol):
    """Allocates the block pool's memory: plain, huge, pinned or shared pages.

    Called once when an engine is built, from the thread that builds it.
    """

    def allocate(self, size: int) -> MemoryRegion:
        """Return a region of at least *size* bytes, which the machine has at the time of the call.

        A page may be backed by memory now or at its first use, and stays backed until the
        region is closed: only the first copy into a page may be slow.

        Raises:
            InvalidRequest: *size* is not positive.
            PoolExhausted: the machine lacks that much memory; never raised at the first use.
        """
        ...


@runtime_checkable
class SupportsMapping(Protocol):
    """A region that other processes can map."""

    @property
    def descriptor(self) -> int:
        """Descriptor of a file that is the region, as long, and sealed against being shortened.

        Open until :meth:`MemoryRegion.close`.
        """
        ...


@runtime_checkable
class SupportsPrefault(Protocol):
    """A region that backs pages with memory shortly before their first use."""

    def prefault(self, used: int) -> None:
        """Begin to back some pages behind the first *used* bytes, if they are not backed yet.

        Called with the pool's lock held, whenever more of the region is used than ever before.
        Never waits, never raises, and changes no byte. Its work has ended when
        :meth:`MemoryRegion.close` returns.
        """
        ...


@runtime_checkable
class SupportsRegistration(Protocol):
    """A store or a channel that reads and writes registered memory directly.

    Such a store may still access the caller's memory when a call's deadline has passed: then
    the call does not return before the access has ended, because its leases end with the call.
    """

    def register(self, region: MemoryRegion) -> None:
        """Use *region* in place. Called when an engine is built, with the pool's memory.

        The region is closed after the store, and not while a call is under way.
        Never raises, and never waits for a service.
        """
        ...
