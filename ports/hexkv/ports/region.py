"""The memory of the block pool: one long region, and where it comes from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class MemoryRegion(Protocol):
    """One long range of memory, owned by whoever allocated it."""

    @property
    def buffer(self) -> memoryview:
        """The range: writable, contiguous, of format ``B``, aligned to ``frame.PAGE``."""
        ...

    @property
    def address(self) -> int:
        """Where the range starts, for registration with a device or a network card."""
        ...

    def close(self) -> None:
        """Give the memory back. Calling it twice is allowed.

        Views of it should be gone. Memory that one still shows is given back with the last
        of them, never before: a late access must not meet somebody else's memory.
        """
        ...


@runtime_checkable
class MemoryProvider(Protocol):
    """Where the block pool's memory comes from: plain, huge, pinned or shared pages.

    Called once when an engine is built, from the thread that builds it.
    """

    def allocate(self, size: int) -> MemoryRegion:
        """A region of at least *size* bytes, which the machine has at the time of the call.

        A page may be backed by memory now or at its first use, and stays backed until the
        region is closed: only the first copy into a page may be slow.

        Raises:
            InvalidRequest: *size* is not positive.
            PoolExhausted: the machine does not have that much; never at the first use.
        """
        ...


@runtime_checkable
class SupportsMapping(Protocol):
    """A region that other processes can map."""

    @property
    def descriptor(self) -> int:
        """Of a file that is the region, as long, and sealed: nobody can make it shorter.

        Open until :meth:`MemoryRegion.close`.
        """
        ...


@runtime_checkable
class SupportsPrefault(Protocol):
    """A region that backs pages by memory shortly before their first use."""

    def prefault(self, used: int) -> None:
        """Begin to back some pages behind the first *used* bytes, where they are not yet.

        Called with the pool's lock held, whenever more of the region is used than ever before.
        Never waits, never raises, and changes no byte. What it began has ended when
        :meth:`MemoryRegion.close` returns.
        """
        ...


@runtime_checkable
class SupportsRegistration(Protocol):
    """A store or a channel that reads and writes memory by itself, once it was shown where that is.

    Such a store may still be in the caller's memory when a call's deadline has passed: then
    it does not return before it is out of it, for with the call its leases end.
    """

    def register(self, region: MemoryRegion) -> None:
        """Use *region* in place. Called when an engine is built, with the pool's memory.

        The region is closed after the store, and not while a call is under way.
        Never raises, and never waits for a service.
        """
        ...
