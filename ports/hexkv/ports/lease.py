"""Leases on blocks of memory, and stores that keep and return leases."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.keys import ChunkKey


class Lease(Protocol):
    """A hold on one block: an aligned range of the pool, or of a store's own memory.

    The header page comes first. While any lease on a block is held its memory is not reused,
    even after a deadline has passed. Leases may be released from any thread. A block has a
    sealed frame (its first bytes are ``frame.MAGIC``) or only a bare payload behind an empty
    header. A block of the pool is writable; one that a store lends may be read-only.
    """

    @property
    def frame(self) -> memoryview:
        """Header page and payload with its padding: the bytes that a store writes."""
        ...

    @property
    def payload(self) -> memoryview:
        """The chunk's bytes, without header and padding."""
        ...

    @property
    def owner(self) -> str:
        """The name under which the lease is listed."""
        ...

    @property
    def spec(self) -> ChunkSpec | None:
        """The chunk that the block holds or will hold; ``None`` if only its bytes are known."""
        ...

    @property
    def size(self) -> int:
        """Bytes of memory of the block, which may be more than those of its frame."""
        ...

    def share(self, owner: str) -> Lease:
        """Return another, independent lease on the same block, in the name of *owner*."""
        ...

    def release(self) -> None:
        """Release the lease. Calling it twice is allowed; using the views afterwards is not."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class MeteredLease(Lease, Protocol):
    """A lease on a frame that is lent to a peer, whose owner counts the bytes sent.

    A channel that sends parts of frames reports each part; for others the whole frame counts.
    """

    def moved(self, size: int) -> None:
        """Count *size* more bytes as sent. Never raises."""
        ...


@runtime_checkable
class SupportsZeroCopy(Protocol):
    """A store in memory that returns leases: loading from it copies a chunk only once."""

    def put_lease(self, keys: Sequence[ChunkKey], leases: Sequence[Lease]) -> None:
        """Keep each block under its key, in place of an earlier one. No key comes twice.

        The store owns the leases from now on, and releases them with their chunks. If this
        raises, it keeps none of them, and they stay the caller's.
        """
        ...

    def get_lease(self, keys: Sequence[ChunkKey], owner: str) -> Sequence[Lease | None]:
        """Return a share of each block, or ``None`` for a miss. Copies and awaits nothing."""
        ...


@runtime_checkable
class SupportsOwnMemory(Protocol):
    """A store that copies chunks into memory of its own, which ends with the process.

    Its chunks take no memory of the pool. Each takes ``Lease.size`` of its lease if the store
    lends leases on that memory, otherwise the bytes of its frame.
    """

    @property
    def own_memory(self) -> bool:
        """True if it does; False for a store that holds shares of the pool's blocks."""
        ...
