"""Which chunks are being computed: others can wait for one instead of computing it, too.

An announcement is a hint. Nothing follows from it but whom to wait for: a chunk is there once it
was published, and what was announced and never came is computed by those who waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.clock import Deadline
from hexkv.ports.keys import ChunkKey

MAX_ANNOUNCED = 1 << 16
"""Chunks that one client may have announced at a time; further ones are not noted."""


@runtime_checkable
class Announcing(Protocol):
    """What clients of one cache tell each other about chunks under way. Safe from any thread.

    An announcement belongs to the client that made it, and ends when the chunk is published by
    anybody, when it is withdrawn, when its time is over, and with its client. A *group* is a
    number of clients that never wait for each other, as the ranks of one engine; *owner* is the
    client's own name for what it withdraws at once. No call raises for a cache that is gone: then
    nothing is announced. Every call after the client was closed raises ``EngineClosed``.
    """

    def announce(
        self, owner: str, group: str, keys: Sequence[ChunkKey], seconds: float, deadline: Deadline
    ) -> int:
        """Say that *owner* computes chunks, for so many *seconds* at most.

        What somebody else has announced before stays that one's. Return how many of *keys* are
        *owner*'s now.
        """
        ...

    def withdraw(self, owner: str, deadline: Deadline) -> int:
        """End what this client announced for *owner*. Return how many chunks that were."""
        ...

    def expect(self, keys: Sequence[ChunkKey], group: str, deadline: Deadline) -> Sequence[bool]:
        """For each chunk, True while somebody outside of *group* computes it.

        Returns as soon as that is not so for one of *keys*, and at *deadline* at the latest; one
        that has passed asks without waiting for any. The answer may take a second more.
        """
        ...


@runtime_checkable
class SupportsPushing(Protocol):
    """Announcements that reach further than one cache: to its peers, which push what comes.

    A peer is named by its name in the directory that both report to. A cache without peers, or
    without a directory, knows none of them. Safe from any thread, and raises as
    :class:`Announcing`.
    """

    def push_to(
        self, peer: str, keys: Sequence[ChunkKey], hold: str, seconds: float, deadline: Deadline
    ) -> str:
        """Have *peer* be sent chunks that are here, or that clients of this cache have announced.

        Each goes as soon as it is here, until it is there, or comes no more; the peer's clients
        expect it meanwhile. Does not wait for any of that.

        Args:
            peer: its name; empty: nobody is sent anything.
            keys: the chunks.
            hold: whose pin, a ``SHARED_OWNER``'s, keeps them from eviction there; empty: nobody's.
            seconds: for which the pin lasts.
            deadline: of the call.

        Returns:
            What peers call this cache; empty where it has none.
        """
        ...

    def seek(
        self, keys: Sequence[ChunkKey], group: str, peer: str, deadline: Deadline
    ) -> Sequence[bool]:
        """As :meth:`Announcing.expect` without waiting for any chunk, of peers, too.

        What peers say that they will push is expected from then on; what of it has come before
        this returns is True, too.

        Args:
            keys: the chunks.
            group: the asker's own.
            peer: who is asked for what it has or computes; empty: some peers, for what they
                compute.
            deadline: until which peers may answer.
        """
        ...
