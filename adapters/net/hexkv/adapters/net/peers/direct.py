"""Memory of a peer that this process reads directly, and the interface to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline, Lease


class Move(NamedTuple):
    """One range of a peer's memory, and its destination."""

    place: int
    """Index in the batch."""

    lease: Lease
    """A lease on the block of *into*."""

    into: memoryview
    at: int
    """Offset in the peer's memory."""


class FarMemory(Protocol):
    """The memory of one peer. Each connection to it holds a reference; the last one frees it."""

    @property
    def size(self) -> int:
        """The size of the memory in bytes; 0 if none of it can be reached."""
        ...

    @property
    def ready(self) -> bool:
        """False while :meth:`pull` would wait for earlier copies: then frames are sent."""
        ...

    def takes(self, into: memoryview) -> bool:
        """True if :meth:`pull` can write there at present."""
        ...

    def pull(
        self, moves: Sequence[Move], filled: Callable[[int, int], None], deadline: Deadline
    ) -> None:
        """Copy ranges that the peer has leased. Their places have been checked.

        When this raises, a copy may still be under way: then it has taken shares of the leases,
        which it releases once no further byte can move.

        Args:
            moves: the copies; the caller holds a share of each lease until this returns.
            filled: may be called with an index and the bytes of its part so far.
            deadline: of all copies.

        Raises:
            OutOfTime, StoreUnreachable: not all of it was copied.
        """
        ...


class OwnMemory(Protocol):
    """This process's memory, as peers see it. Safe from any thread."""

    @property
    def magic(self) -> bytes:
        """The eight bytes that identify peers of one kind."""
        ...

    @property
    def instant(self) -> bool:
        """True if both ends see the end of a connection at the same time."""
        ...

    def find(self, view: memoryview) -> int | None:
        """Return the offset of *view* in the memory that peers can reach, or ``None``."""
        ...

    def meet(self, stream: Stream, deadline: Deadline) -> FarMemory:
        """Exchange with the other end of *stream* how each reaches the other's memory.

        Raises:
            OutOfTime, StoreUnreachable: the other end cannot agree on a way.
        """
        ...

    def lending(self) -> AbstractContextManager[object]:
        """Return a context in which peers may read; some libraries move bytes only when called."""
        ...
