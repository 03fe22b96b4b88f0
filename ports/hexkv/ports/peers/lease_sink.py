"""The sink of a channel between peers: memory to read into that is leased."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hexkv.ports.lease import Lease


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
