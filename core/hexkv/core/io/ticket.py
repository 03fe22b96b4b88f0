"""Tickets: what callers have of tasks that a lane's workers do for them."""

from __future__ import annotations

from threading import Condition
from typing import TYPE_CHECKING, Generic, TypeVar

from hexkv.ports import Deadline

if TYPE_CHECKING:
    from hexkv.core.io.scheduler import Lane

T = TypeVar("T")


class Ticket(Generic[T]):
    """A task's answer, now or later."""

    __slots__ = ("_lane", "changed", "done", "result")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.changed: Condition | None = None
        """Notified once it is done; ``None`` while nobody waits."""

        self.done = False
        self.result: T | None = None

    @classmethod
    def of(cls, result: T) -> Ticket[T]:
        """Of a task that was done at once, by no lane."""
        ticket: Ticket[T] = cls.__new__(cls)
        ticket.done, ticket.result = True, result
        return ticket

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the answer. ``False`` if *deadline* passed first.

        If the lane ended nothing at all meanwhile, that opens its breaker.
        """
        return self.done or self._lane.wait(self, deadline)

    def peek(self, deadline: Deadline) -> bool:
        """Wait likewise, and draw no conclusion about the lane: the caller may ask again."""
        return self.done or self._lane.peek(self, deadline)

    def abandon(self) -> None:
        """Nobody waits any more: a task that has not begun gives back what it holds at once."""
        if not self.done:
            self._lane.abandon(self)
