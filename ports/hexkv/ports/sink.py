"""The sinks: where a store, or a channel between peers, puts what it reads."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hexkv.ports.memory import Lease


class Sink(Protocol):
    """Gives a store the memory to read into, once the store knows how much it takes."""

    def room(self, index: int, size: int) -> memoryview | None:
        """A writable buffer of exactly *size* bytes for the chunk at *index* of the batch.

        The same index may be asked for again, after a failed first try: the newer buffer
        counts. ``None`` means: do not read this one, answer ``Miss(REFUSED)``. The buffer
        starts at a multiple of ``frame.PAGE`` where the pool gave it. Never raises, and may
        take its time: a store holds no lock meanwhile that another call needs.
        """
        ...

    def filled(self, index: int, upto: int) -> None:
        """Learn that the newest buffer for *index* has its first *upto* bytes.

        No store has to call this. One whose CPU copies the bytes, and for which a further call of
        the system costs little, reads :data:`PIECE` bytes at a time and calls it in between, from
        the thread that read them: the sink looks at them while they are in the CPU's cache.
        *upto* grows from call to call. These bytes are not written again: who begins anew asks
        for room anew. Never raises, and takes no longer than it takes to read the bytes.
        """
        ...


PIECE = 512 << 10
"""Bytes after which a store tells a sink how far it is: a core's own cache has room for more."""


class Destination(NamedTuple):
    """Where one part is written."""

    lease: Lease
    """On the block that *into* is in. The caller's; the channel shares it."""

    into: memoryview
    """Writable, of format ``B``, of exactly the part's size."""


class LeaseSink(Protocol):
    """Gives a channel the memory to read into. Called by the thread that called ``read``."""

    def room(self, index: int, size: int) -> Destination | None:
        """Return memory of *size* bytes for the part at *index*; ``None``: ``Miss(REFUSED)``.

        The same index may be asked for again, after a failed first try. Never raises.
        """
        ...

    def filled(self, index: int, upto: int) -> None:
        """Learn that the newest memory for *index* has its first *upto* bytes, as of a ``Sink``."""
        ...
