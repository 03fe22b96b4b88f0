"""Memory of a peer that this process reads by itself, and what a channel asks of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from hexkv.adapters.net.stream import Stream
from hexkv.ports import Deadline, Lease


class Move(NamedTuple):
    """One range of a peer's memory, and where it is to be copied."""

    place: int
    """In the batch."""

    lease: Lease
    """On the block that *into* is in."""

    into: memoryview
    at: int
    """In the peer's memory."""


class FarMemory(Protocol):
    """The memory of one peer. Whoever has the connection to it has this; it goes with the last."""

    @property
    def size(self) -> int:
        """Bytes that it has; 0 where nothing of it can be reached."""
        ...

    @property
    def ready(self) -> bool:
        """False while :meth:`pull` would wait for what came before it: then frames are sent."""
        ...

    def takes(self, into: memoryview) -> bool:
        """True if :meth:`pull` can write there now."""
        ...

    def pull(
        self, moves: Sequence[Move], filled: Callable[[int, int], None], deadline: Deadline
    ) -> None:
        """Copy ranges that the peer has leased. What it says of them has been checked.

        When this raises, a copy may still be under way: then it has taken shares of the leases,
        which it releases once no byte can move any more.

        Args:
            moves: what is copied; the caller holds a share of each lease until this returns.
            filled: may be told how far the part of an index is.
            deadline: of all of them.

        Raises:
            OutOfTime, StoreUnreachable: not all of it was copied.
        """
        ...


class OwnMemory(Protocol):
    """This process's memory, as peers see it. Safe from any thread."""

    @property
    def magic(self) -> bytes:
        """The eight bytes by which the peers of one kind know each other."""
        ...

    @property
    def instant(self) -> bool:
        """True if the end of a connection is seen by both ends at the same time."""
        ...

    def find(self, view: memoryview) -> int | None:
        """Where *view* begins in the memory that peers can reach; ``None`` if it is not in it."""
        ...

    def meet(self, stream: Stream, deadline: Deadline) -> FarMemory:
        """Tell the other end of *stream* how to reach this memory, and learn the same of it.

        Raises:
            OutOfTime, StoreUnreachable: there is no understanding with it.
        """
        ...

    def lending(self) -> AbstractContextManager[object]:
        """While peers may read: for a library that moves bytes only when it is called."""
        ...
