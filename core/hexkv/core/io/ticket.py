"""Tickets: a caller's side of tasks that a lane's workers do."""

from __future__ import annotations

from threading import Condition
from typing import TYPE_CHECKING, Generic, TypeVar

from hexkv.ports import Deadline

if TYPE_CHECKING:
    from hexkv.core.io.scheduler import Lane

T = TypeVar("T")


class Ticket(Generic[T]):
    """The result of a task, now or later."""

    __slots__ = ("_lane", "changed", "done", "result")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.changed: Condition | None = None
        """Notified once it is done; ``None`` while no caller waits."""

        self.done = False
        self.result: T | None = None

    @classmethod
    def of(cls, result: T) -> Ticket[T]:
        """Return a ticket of a task that was done at once, without a lane."""
        ticket: Ticket[T] = cls.__new__(cls)
        ticket.done, ticket.result = True, result
        return ticket

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the result. Return False if *deadline* passes first.

        If the lane ended no task at all in that time, this opens its breaker.
        """
        return self.done or self._lane.wait(self, deadline)

    def peek(self, deadline: Deadline) -> bool:
        """Wait in the same way, but without blaming the lane: the caller may call again."""
        return self.done or self._lane.peek(self, deadline)

    def abandon(self) -> None:
        """Stop waiting: a task that has not begun releases its resources at once."""
        if not self.done:
            self._lane.abandon(self)
