"""Holds and publishings of a service, as far as requests need more of them than their hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from hexkv.ports.hold import Hold, Publishing
from hexkv.ports.keys import ChunkKey
from hexkv.ports.runtime.clock import Deadline


class HoldTerms(NamedTuple):
    """How a hold of a :class:`~hexkv.ports.ChunkService` reads, and for whom."""

    after: ChunkKey | None = None
    """The chunk before the first of them, if they are neighbours in one prompt."""

    found: Sequence[str] | None = None
    """The tier of each chunk, as ``match`` returned it; ``None``: not queried yet."""

    wait: Deadline | None = None
    """Until when to wait for memory, and only while it holds none; ``None``: the reads' deadline.
    A service in another process does so until the reads' deadline."""

    encoded: Collection[str] = ()
    """Serdes, as frames name them, whose payloads may stay encoded: the lease's spec names it."""

    passing: bool = False
    """True: for a request that loads chunks in order, and releases each soon after it arrived.
    Nothing behind a chunk without memory is read."""

    ahead: bool = False
    """True: for a later request. It waits for nothing, and leases no chunk that a tier leases in
    place: that one is missing with the reason ``PRESENT``."""

    most: int | None = None
    """With *ahead*: bytes of memory to take at most."""

    seconds: float | None = None
    """The time after which a service in another process takes the hold back, in any state of this
    process, unless :meth:`ServiceHold.keep` came before."""

    layered: Sequence[range] = ()
    """For a request that copies a few layers at a time: groups of neighbouring layers, all of them
    in order, which may be read one after another. Nothing behind a chunk without memory is read."""

    rate: float | None = None
    """Tokens per second that the host of a request from another process computes: slower tiers are
    left out."""

    last: ChunkKey | None = None
    """The last chunk of the request, if the hold may be of a part of it."""


class ServiceHold(Hold, Protocol):
    """A hold that was requested, and may not be answered yet."""

    @property
    def lent(self) -> bool:
        """True if all of its chunks were leased at once, from the fastest tier."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes of memory that it takes beside that of the tiers, as far as known."""
        ...

    @property
    def begun(self) -> int:
        """How many of the first chunks are here or on their way, as far as known."""
        ...

    def wait(self, deadline: Deadline, first: int | None = None) -> bool:
        """Wait until it is done, or only its *first* chunks; see :meth:`Hold.wait`."""
        ...

    def known(self, deadline: Deadline) -> bool:
        """True once ``reasons`` is known for absent chunks, though others are on their way.

        Waits for that up to *deadline*.
        """
        ...

    def keep(self, deadline: Deadline, encoded: Collection[str] = ()) -> bool:
        """Take a hold that was requested *ahead*: from now on it lasts until its release.

        Its leases must not be read before this. Payloads of other serdes than *encoded* are
        decoded. True at once for a hold without a limit.

        Returns:
            False if the service has taken it back, or does not answer: then it is released.
        """
        ...

    def bring(self, group: int, deadline: Deadline) -> int:
        """Wait for a group of layers, each once and in order.

        Return how many of the first chunks have all groups up to this one; the leases of those
        behind them are released.
        """
        ...

    @property
    def replaced(self) -> int:
        """How many leases were replaced by others since the first group was brought."""
        ...

    def once(self, group: int, then: Callable[[], None]) -> None:
        """Call *then* once all of *group* is here, if it ever is: now, or on a worker."""
        ...

    def go_on(self, group: int, deadline: Deadline) -> None:
        """Begin to read groups behind *group*, which was brought and copied."""
        ...

    def used(self, deadline: Deadline) -> None:
        """Note that the chunks were loaded: a cache may copy them to faster tiers now."""
        ...


class ServicePublishing(Publishing, Protocol):
    """Chunks being written to the tiers, by name where they are near."""

    @property
    def targets(self) -> Collection[str]:
        """The tiers that they are written to; empty if another process writes them."""
        ...

    def wait(self, deadline: Deadline, tier: str | None = None) -> bool:
        """Wait until it is done, or only for one of its ``targets``; see :class:`Publishing`."""
        ...
