"""The store port: keeps frames under keys.

The core calls a store from several threads at once, always with batches (one chunk is a
batch of one), and never trusts the bytes that it reads: the core verifies frames, so a
store treats them as opaque bytes of any length, from 0 to 64 MiB at least. Scheduling,
retries, breakers, budgets and eviction are the core's. A store promises neither durability
nor that a chunk it once took is still there.

Errors: an outcome per chunk where chunks can differ; an exception of the ``StoreError``
branch if the whole call failed. Any other exception counts as a failure of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import ReadOutcome, WriteOutcome
from hexkv.ports.runtime.clock import Deadline


class Sink(Protocol):
    """Gives a store the memory to read into, once the store knows the size."""

    def room(self, index: int, size: int) -> memoryview | None:
        """Return a writable buffer of exactly *size* bytes for the chunk at *index* of the batch.

        May be called again for an index, after a failed first try: the newer buffer counts.
        ``None`` means: do not read this one, return ``Miss(REFUSED)``. A buffer of the pool
        starts at a multiple of ``frame.PAGE``. Never raises, and may take its time: during the
        call a store holds no lock that another call needs.
        """
        ...

    def filled(self, index: int, upto: int) -> None:
        """Note that the newest buffer for *index* has its first *upto* bytes.

        No store has to call this. A store that copies with the CPU, and for which a further system
        call costs little, reads :data:`PIECE` bytes at a time and calls it in between, from the
        thread that read them: the sink reads them while they are in the CPU's cache. *upto* grows
        from call to call. These bytes are not written again: to begin anew, a store calls
        :meth:`room` anew. Never raises, and takes no longer than it takes to read the bytes.
        """
        ...


PIECE = 512 << 10
"""Bytes between two calls of :meth:`Sink.filled`: less than the cache of a CPU core."""


class Item(NamedTuple):
    """One chunk to write. The buffer is the caller's again when the call returns."""

    key: ChunkKey
    frame: memoryview


@runtime_checkable
class ChunkStore(Protocol):
    """Keeps frames by key, and returns the same bytes or nothing."""

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Return True for each chunk that is readable, as far as known without reading it.

        A chunk that was never stored, or that this store deleted, is False: True is no guess.
        A store that gets no answer, or none in time, does not know, and raises; one that knows a
        chunk to be out of reach may return False.
        """
        ...

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        """Read each frame into a buffer of *sink*.

        ``Hit(size)`` means that all *size* bytes of the buffer were written. After any other
        outcome the buffer's content is undefined. Nothing is written into a buffer after the
        call, and a chunk whose read failed is no ``Miss``.
        """
        ...

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        """Store each frame, in place of an earlier one under its key.

        A reader sees the old frame or the new one, whole, never a mixture. After any outcome
        but ``Stored`` its key has the old frame, the new one or none, and may change among
        these a while later; no other key loses its frame. Bytes sent later come from a copy.
        A frame that is longer than the store takes is ``Failed`` with ``StoreFull``.
        """
        ...

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Delete each chunk. Return True for each that was there."""
        ...

    def close(self) -> None:
        """Release everything, in less than a second. Calling it twice is allowed."""
        ...
