"""One member's bytes for all: ranks, each in a process of its own, that hold the same KV.

Where such ranks share no memory and no node, the first one reads a chunk and gives it to the
others. They move in lockstep, message by message. That makes one lost member everybody's concern,
so a collective is never waited for beyond a deadline, and who uses one has another way: to read by
itself, or to compute.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.clock import Deadline

MAX_MESSAGE = 1 << 30
"""Bytes of data in one message at most."""

MAX_HEAD = 128
"""Bytes of a message's head at most."""


@runtime_checkable
class Collective(Protocol):
    """One member's end. The member of rank 0 sends messages, each other one receives them all.

    Called by one thread at a time; :attr:`whole` and :meth:`close` by any. A member that is lost
    (its process died or hangs, the network parted it, it did not call in time) makes every other
    one raise :class:`~hexkv.ports.errors.CollectiveBroken` by its deadline. From then on calls
    raise it at once, without waiting, until all members are there again; then they begin anew,
    with nothing left of what was under way. Members may learn of both between other messages, so
    a message has to say what it is about.
    """

    @property
    def rank(self) -> int:
        """This member's place, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many members there are, this one included: two or more."""
        ...

    @property
    def whole(self) -> bool:
        """False from when this member learned that one was lost, until all are there again.

        And after :meth:`close`. Asks nobody.
        """
        ...

    def send(self, head: bytes, data: memoryview, deadline: Deadline) -> None:
        """Give *head* and *data* (contiguous, possibly empty) to all others. For rank 0.

        That it returns does not say that others have them. After an error *data* may still be
        read until :meth:`close`, but nobody is given what is read then.

        Raises:
            CollectiveBroken: a member was lost before or meanwhile, or *deadline* has passed.
            InvalidRequest: another rank calls it, or one of both is too long.
        """
        ...

    def receive(self, limit: int, deadline: Deadline) -> tuple[bytes, memoryview]:
        """Return head and data of the next message, with at most *limit* bytes of data.

        The data's memory is the collective's, and read-only. It stays as it is until this
        member's next call, whatever arrives late.

        Raises:
            CollectiveBroken: likewise; or the data is longer, which is found out before any
                memory is taken for it.
            InvalidRequest: rank 0 calls it, or *limit* is too large.
        """
        ...

    def part(self) -> None:
        """Count a member as lost, as of what was received nothing makes sense."""
        ...

    def close(self) -> None:
        """Leave for good. Others count this member as lost. Twice is allowed."""
        ...
