"""Leases on blocks of memory, and stores that keep and lend them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.keys import ChunkKey


class Lease(Protocol):
    """A hold on one block: an aligned range of the pool, or of a store's own memory.

    The header page comes first. While any lease on a block is held its memory is not reused,
    whatever deadline has passed. Leases may be released from any thread. A block may carry a
    sealed frame (its first bytes are ``frame.MAGIC``) or only a bare payload behind an empty
    header. A block of the pool is writable; one that a store lends may be read-only.
    """

    @property
    def frame(self) -> memoryview:
        """Header page and payload with its padding: what a store writes."""
        ...

    @property
    def payload(self) -> memoryview:
        """The chunk's bytes alone, without header and padding."""
        ...

    @property
    def owner(self) -> str:
        """Under whose name the lease is listed."""
        ...

    @property
    def spec(self) -> ChunkSpec | None:
        """What the block holds, or is to hold; ``None`` where only its bytes are known."""
        ...

    @property
    def size(self) -> int:
        """Bytes of memory that the block takes, which may be more than its frame has."""
        ...

    def share(self, owner: str) -> Lease:
        """Another, independent hold on the same block, in the name of *owner*."""
        ...

    def release(self) -> None:
        """Let go. Calling it twice is allowed; using the views afterwards is not."""
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
    """A lease on a frame that is lent to a peer, whose owner counts what leaves.

    A channel that sends parts of frames says so; of others the whole frame is counted.
    """

    def moved(self, size: int) -> None:
        """Learn that *size* bytes more have left. Never raises."""
        ...


@runtime_checkable
class SupportsZeroCopy(Protocol):
    """A store in memory that lends leases: loading from it copies a chunk once."""

    def put_lease(self, keys: Sequence[ChunkKey], leases: Sequence[Lease]) -> None:
        """Keep each block under its key, in place of what was there. No key comes twice.

        The leases are the store's from now on, to be released with their chunks. If this
        raises it keeps none of them, and they are the caller's.
        """
        ...

    def get_lease(self, keys: Sequence[ChunkKey], owner: str) -> Sequence[Lease | None]:
        """A share of each block, or ``None`` where there is none. Copies and awaits nothing."""
        ...


@runtime_checkable
class SupportsOwnMemory(Protocol):
    """A store that copies chunks into memory of its own, which ends with the process.

    Its chunks take nothing of the pool. Each takes ``Lease.size`` of what is lent, where the
    store lends leases on that memory, else the bytes of its frame.
    """

    @property
    def own_memory(self) -> bool:
        """True if it does; a store that holds shares of the pool's blocks says False."""
        ...
