"""Optional abilities of stores: to list, clear and set aside chunks, and to read parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import ReadOutcome
from hexkv.ports.runtime.clock import Deadline


class Entry(NamedTuple):
    """One stored chunk, as a scan lists it."""

    key: ChunkKey
    size: int
    """Bytes of the frame."""

    stored: float
    """Wall-clock seconds at which it was stored, or last known to be used."""


@runtime_checkable
class SupportsScan(Protocol):
    """A store that can list its chunks: the core rebuilds its index from the list."""

    def scan(self) -> Iterator[Entry]:
        """Iterate over every chunk once, in no order; over nothing but chunks.

        Every chunk that was stored before the scan began, and is still there, is listed. One that
        is stored or deleted during the scan may be listed or not, and hides no other one.
        """
        ...


@runtime_checkable
class SharedMedium(Protocol):
    """A store that other processes may write and delete in beside this engine."""

    @property
    def shared(self) -> bool:
        """True if they may: then the core queries it for chunks that its own index lacks."""
        ...


@runtime_checkable
class ReadOnlyStore(Protocol):
    """A store that may take no writes, because other processes fill it."""

    @property
    def read_only(self) -> bool:
        """True if it takes no writes: then nothing is stored there, by default."""
        ...


@runtime_checkable
class SupportsQuarantine(Protocol):
    """A store that can set damaged chunks aside for a person to look at."""

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        """Make the chunks unreadable, and keep a bounded number of them aside."""
        ...


@runtime_checkable
class SupportsLimit(Protocol):
    """A store that has a limit of bytes itself, as the budget of its tier."""

    def limit(self, size: int) -> None:
        """Take *size* bytes at most from now on; chunks beyond it stay.

        Called by any thread; does no I/O.

        Raises:
            StoreFull: there cannot be as many. The former limit stays.
        """
        ...


@runtime_checkable
class SupportsClear(Protocol):
    """A store that can delete the chunks of a namespace, even if it cannot list them."""

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int:
        """Delete every chunk whose key begins with *prefix*, and nothing else; return how many.

        An empty prefix stands for all chunks. Chunks written during the call may stay.

        Raises:
            StoreError: some may be left, for instance because the deadline passed.
        """
        ...


@runtime_checkable
class SupportsRangeRead(Protocol):
    """A store that can read a part of a frame: one layer of a chunk."""

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        """Fill *into* with the frame's bytes from *start* on. ``Hit(len(into))`` if whole.

        No range of an absent chunk is a hit, an empty one included. A store that knows the frame's
        length returns it as ``Hit.whole``: a longer one is damage.
        """
        ...
