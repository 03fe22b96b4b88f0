"""The sinks: memory into which a store, or a channel between peers, reads."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hexkv.ports.memory import Lease


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


class Destination(NamedTuple):
    """The memory for one part."""

    lease: Lease
    """A lease on the block of *into*. The caller's; the channel shares it."""

    into: memoryview
    """Writable, of format ``B``, of exactly the part's size."""


class LeaseSink(Protocol):
    """Gives a channel the memory to read into. Called by the thread that called ``read``."""

    def room(self, index: int, size: int) -> Destination | None:
        """Return memory of *size* bytes for the part at *index*; ``None``: ``Miss(REFUSED)``.

        May be called again for an index, after a failed first try. Never raises.
        """
        ...

    def filled(self, index: int, upto: int) -> None:
        """Note that the newest memory for *index* has its first *upto* bytes, as of a ``Sink``."""
        ...
