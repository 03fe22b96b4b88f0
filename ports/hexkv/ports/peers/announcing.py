"""Announcements of chunks under computation, for which others can wait instead of computing them.

An announcement is a hint: it only names chunks to wait for. A chunk is available once it is
published, and clients compute the chunks that they waited for and that never came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.runtime.clock import Deadline

MAX_ANNOUNCED = 1 << 16
"""The most chunks that one client may have announced at a time; further ones are ignored."""


@runtime_checkable
class Announcing(Protocol):
    """Announcements among the clients of one cache. Safe from any thread.

    An announcement belongs to the client that made it. It ends when any client publishes the
    chunk, when it is withdrawn, when its time is over, and with its client. A *group* is a set of
    clients that never wait for each other, as the ranks of one engine; *owner* is the client's
    own name for announcements that it withdraws together. No call raises if the cache is gone:
    then nothing is announced. Every call after the client was closed raises ``EngineClosed``.
    """

    def announce(
        self, owner: str, group: str, keys: Sequence[ChunkKey], seconds: float, deadline: Deadline
    ) -> int:
        """Announce that *owner* computes chunks, for *seconds* at most.

        An announcement of another client or owner stays as it is. Return how many of *keys* are
        *owner*'s now.
        """
        ...

    def withdraw(self, owner: str, deadline: Deadline) -> int:
        """End this client's announcements for *owner*. Return the number of their chunks."""
        ...

    def expect(self, keys: Sequence[ChunkKey], group: str, deadline: Deadline) -> Sequence[bool]:
        """Return True for each chunk that a client outside of *group* computes.

        Wait while that is so for all of *keys*, until *deadline* at most; with a deadline that has
        passed, return at once. The answer may take a second more.
        """
        ...


@runtime_checkable
class SupportsPushing(Protocol):
    """Announcements among a cache and its peers, which push chunks as they are computed.

    A peer is given by its name in the directory that both report to. A cache without peers, or
    without a directory, knows no peers. Safe from any thread, and raises as
    :class:`Announcing`.
    """

    def push_to(
        self, peer: str, keys: Sequence[ChunkKey], hold: str, seconds: float, deadline: Deadline
    ) -> str:
        """Push to *peer* the chunks that are here, or that clients of this cache have announced.

        Each is sent as soon as it is here; the peer's clients expect it until it has arrived, or
        will not come. Does not wait for any of that.

        Args:
            peer: the peer's name; empty: push nothing.
            keys: the chunks.
            hold: owner, beginning with ``SHARED_OWNER``, of a pin on them at the peer; empty: none.
            seconds: how long the pin lasts.
            deadline: of the call.

        Returns:
            This cache's name among peers; empty if it has none.
        """
        ...

    def seek(
        self, keys: Sequence[ChunkKey], group: str, peer: str, deadline: Deadline
    ) -> Sequence[bool]:
        """Query as :meth:`Announcing.expect`, peers too, without waiting for any chunk.

        Chunks that peers agree to push are expected from then on; those that arrive before the
        call returns are True, too.

        Args:
            keys: the chunks.
            group: the caller's own.
            peer: the peer to query for chunks that it has or computes; empty: query some peers
                for chunks that they compute.
            deadline: until which peers may answer.
        """
        ...
