"""A lane's tasks, and a caller's side of one: room for it in the queue, and its ticket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from hexkv.ports import Deadline

if TYPE_CHECKING:
    from hexkv.core.io.scheduler import Lane

T = TypeVar("T")


class Room:
    """Bytes of a lane's queue reserved for one task. Released with the last reference to it.

    A context manager: on exit it returns the bytes that the task did not use.
    """

    __slots__ = ("__weakref__", "_lane", "count", "size")

    def __init__(self, lane: Lane | None, sizes: Sequence[int], free: int | None = None) -> None:
        """Room for all of *sizes*; with *free* bytes for the first, and the next ones that fit."""
        self.count = len(sizes)
        """The number of the requested sizes that there is room for."""

        self.size = sum(sizes)
        if free is not None:
            while self.size > free and self.count > 1:
                self.count -= 1
                self.size -= sizes[self.count]
        self._lane = lane

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lane is not None:
            self._lane.leave(self)


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


@dataclass(order=True, slots=True)
class Task:
    """Work in the queue of a lane; of two, the one of less rank goes first."""

    rank: tuple[int, int]
    size: int = field(compare=False)
    work: Callable[[bool], tuple[object, bool | None]] = field(compare=False)
    ticket: Ticket[object] = field(compare=False)
    deadline: Deadline | None = field(compare=False)
    name: str = field(compare=False)
    queued: float = field(compare=False)
    wanted: bool = field(default=True, compare=False)
