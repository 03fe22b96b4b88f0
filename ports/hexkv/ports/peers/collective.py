"""Broadcast among ranks, each in a process of its own, that hold the same KV.

Where such ranks share no memory and no node, the first one reads a chunk and sends it to the
others. They proceed in lockstep, message by message. So one lost member stops all of them: no
call waits for a collective beyond its deadline, and each user has an alternative, to read the
chunk itself or to compute it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.runtime.clock import Deadline

MAX_MESSAGE = 1 << 30
"""The most bytes of data in one message."""

MAX_HEAD = 128
"""The most bytes of a message's head."""


@runtime_checkable
class Collective(Protocol):
    """One member's end. The member of rank 0 sends messages, each other one receives them all.

    Called by one thread at a time; :attr:`whole` and :meth:`close` by any. If a member is lost
    (its process died or hangs, the network parted it, it did not call in time), every other one
    raises :class:`~hexkv.ports.errors.CollectiveBroken` by its deadline. From then on calls
    raise it at once, without waiting, until all members are connected again; then they begin anew,
    without any message that was under way. Members may learn of both at different messages, so
    each message has to identify its subject.
    """

    @property
    def rank(self) -> int:
        """This member's rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of members, this one included: two or more."""
        ...

    @property
    def whole(self) -> bool:
        """False from when this member learned of a loss until all are connected again.

        Also False after :meth:`close`. Sends nothing and never waits, also while another thread is
        in a call. Members connect again without any call.
        """
        ...

    def send(self, head: bytes, data: memoryview, deadline: Deadline) -> None:
        """Send *head* and *data* (contiguous, possibly empty) to all others. For rank 0.

        Returning does not mean that others have received them. After an error *data* may still be
        read until :meth:`close`, but no member receives the bytes read then.

        Raises:
            CollectiveBroken: a member was lost before or during the call, or *deadline* has passed.
            InvalidRequest: another rank calls it, or *head* or *data* is too long.
        """
        ...

    def receive(self, limit: int, deadline: Deadline) -> tuple[bytes, memoryview]:
        """Return head and data of the next message, with at most *limit* bytes of data.

        The data's memory is the collective's, and read-only. It stays unchanged until this
        member's next call, even if messages arrive late.

        Raises:
            CollectiveBroken: as :meth:`send`; or the data is longer, which is detected before
                memory is allocated for it.
            InvalidRequest: rank 0 calls it, or *limit* is too large.
        """
        ...

    def part(self) -> None:
        """Count a member as lost, because a received message makes no sense."""
        ...

    def close(self) -> None:
        """Leave for good. Others count this member as lost. Twice is allowed."""
        ...
