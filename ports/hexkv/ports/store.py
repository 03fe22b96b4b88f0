"""The store port: keeps frames under keys.

The core calls a store from several threads at once, always with batches (one chunk is a
batch of one), and never trusts the bytes that it reads: the core verifies frames, so a
store treats them as opaque bytes of any length, 0 included. Scheduling, retries, breakers,
budgets and eviction are the core's. A store promises neither durability nor that a chunk
it once took is still there.

Errors: an outcome per chunk where chunks can differ; an exception of the ``StoreError``
branch if the whole call failed. Any other exception counts as a failure of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.clock import Deadline
from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import ReadOutcome, WriteOutcome
from hexkv.ports.sink import Sink


class Item(NamedTuple):
    """One chunk to write. The buffer is the caller's again when the call returns."""

    key: ChunkKey
    frame: memoryview


@runtime_checkable
class ChunkStore(Protocol):
    """Keeps frames by key, and returns the same bytes or nothing."""

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Return True for each chunk that is readable, as far as known without reading it."""
        ...

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        """Read each frame into a buffer of *sink*.

        ``Hit(size)`` means that all *size* bytes of the buffer were written. After any other
        outcome the buffer's content is undefined.
        """
        ...

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        """Store each frame, in place of an earlier one under its key.

        A reader sees the old frame or the new one, whole, never a mixture. After any outcome
        but ``Stored`` its key has the old frame, the new one or none, and may change among
        these a while later; no other key loses its frame. Bytes sent later come from a copy.
        """
        ...

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Delete each chunk. Return True for each that was there."""
        ...

    def close(self) -> None:
        """Release everything, in less than a second. Calling it twice is allowed."""
        ...


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
        """Iterate over every chunk once, in no order, possibly stale; over nothing but chunks.

        A chunk stored or deleted during the scan may be listed or not, and hides no other one.
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

        A store that knows the frame's length returns it as ``Hit.whole``: a longer one is damage.
        """
        ...
