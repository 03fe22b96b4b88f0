"""The I/O scheduler: one place for priorities, queues, deadlines and breakers.

Every tier has a lane for reading and a lane for writing, each with workers, a queue
bounded in bytes and a breaker of its own. So a slow tier never delays a fast one, loads
never stand behind stores, and a disk that refuses writes still reads. A task that its
caller no longer waits for is skipped if it has not begun; if it has, its memory stays
leased until it ends.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from threading import Condition
from typing import Generic, TypeVar

from hexkv.core.io.breaker import Breaker, BreakerRules
from hexkv.ports import Clock, Completion, Counter, Deadline, Executor, Telemetry

T = TypeVar("T")

log = logging.getLogger("hexkv")


class Priority(IntEnum):
    """What goes first where several tasks wait for a worker."""

    PEEK = 0
    PREFETCH = 1
    GET = 2
    DELETE = 3
    PUT = 4

    @property
    def writing(self) -> bool:
        """Whether it belongs on the lane for writing."""
        return self >= Priority.DELETE


@dataclass(frozen=True, slots=True)
class LaneRules:
    """Limits of one lane."""

    workers: int = 4
    queue_bytes: int = 1 << 30
    """Bytes of tasks that wait or run. A task that would exceed it is refused."""

    breaker: BreakerRules = field(default_factory=BreakerRules)


class Refused(Exception):
    """The lane does not take the task; the message is the reason that is counted."""


class Ticket(Generic[T]):
    """A task's answer, now or later."""

    __slots__ = ("_lane", "done", "result")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.done = False
        self.result: T | None = None

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the answer. ``False`` if *deadline* passed first.

        If the lane ended nothing at all meanwhile, that opens its breaker.
        """
        return self.done or self._lane.wait(self, deadline)

    def abandon(self) -> None:
        """Nobody waits any more: a task that has not begun gives back what it holds at once."""
        self._lane.abandon(self)


@dataclass(order=True, slots=True)
class _Task:
    rank: tuple[int, int]
    size: int = field(compare=False)
    work: Callable[[bool], tuple[object, bool | None]] = field(compare=False)
    ticket: Ticket[object] = field(compare=False)
    deadline: Deadline | None = field(compare=False)


class Lane:
    """One direction of one tier: a queue, workers and a breaker."""

    def __init__(
        self,
        name: str,
        rules: LaneRules,
        executor: Executor,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self.name = name
        self._tier = name.rpartition("/")[0] or name
        self.breaker = Breaker(clock, rules.breaker)
        self._rules = rules
        self._executor = executor
        self._telemetry = telemetry
        self._heap: list[_Task] = []
        self._order = itertools.count()
        self._bytes = 0
        self._tasks = 0
        self._ended = 0
        self._parked = 0
        self._held = False
        self._closed = False
        self._changed = Condition()
        executor.open(name, rules.workers)

    @property
    def pending_bytes(self) -> int:
        """Bytes of tasks that wait or run."""
        return self._bytes

    @property
    def pending(self) -> int:
        """Tasks that wait or run."""
        return self._tasks

    def submit(
        self,
        priority: Priority,
        size: int,
        work: Callable[[bool], tuple[T, bool | None]],
        deadline: Deadline | None = None,
    ) -> Ticket[T]:
        """Queue *work*.

        Args:
            priority: which task goes first.
            size: bytes that it moves, or holds.
            work: called exactly once, with whether it is to do anything: ``False`` if it
                was abandoned, came too late or the lane was closed, so that it gives back
                what it holds. Gives its answer, and whether the store was well (``None``
                where that says nothing). Never raises.
            deadline: after which it need not begin.

        Raises:
            Refused: the breaker is open, the queue is full, or the lane was closed.
        """
        ticket: Ticket[T] = Ticket(self)
        with self._changed:
            if self._closed:
                raise Refused("closed")
            if not self.takes(size):
                raise Refused("queue full")
            if not self.breaker.admits():
                raise Refused("tier off")
            self._bytes += size
            self._tasks += 1
            rank = (int(priority), next(self._order))
            task = _Task(rank, size, work, ticket, deadline)  # type: ignore[arg-type]
            heapq.heappush(self._heap, task)
        self._executor.run(self.name, self._step)
        return ticket

    def wait(self, ticket: Ticket[T], deadline: Deadline) -> bool:
        """See :meth:`Ticket.wait`."""
        with self._changed:
            ended, hopeless = self._ended, deadline.expired
            if self._executor.wait(self._changed, lambda: ticket.done, deadline):
                return True
            if self._ended != ended or hopeless:
                return False  # slow, or others used up the time; but not dead
        if self.breaker.failed(at_once=True):
            self._telemetry.count(Counter.BREAKER_OPENED, 1, tier=self._tier, reason="timed out")
        return False

    def abandon(self, ticket: Ticket[T]) -> None:
        """See :meth:`Ticket.abandon`.

        Behind workers that hang, what nobody wants would hold its blocks for as long.
        """
        with self._changed:
            task = next((task for task in self._heap if task.ticket is ticket), None)
            if task is None:
                return
            self._heap.remove(task)
            heapq.heapify(self._heap)
        self._do(task, wanted=False)()

    def takes(self, size: int) -> bool:
        """Whether a task of *size* bytes would not find the queue full."""
        return not self._bytes or not size or self._bytes + size <= self._rules.queue_bytes

    def drain(self, deadline: Deadline) -> bool:
        """Wait until nothing waits or runs. Whether that came in time."""
        with self._changed:
            return self._executor.wait(self._changed, lambda: not self._tasks, deadline)

    def hold(self) -> None:
        """Begin no put until :meth:`unhold`."""
        with self._changed:
            self._held = True

    def unhold(self) -> None:
        """Begin the puts that came meanwhile."""
        with self._changed:
            self._held = False
            parked, self._parked = self._parked, 0
        for _ in range(parked):
            self._executor.run(self.name, self._step)

    def close(self) -> None:
        """Refuse new tasks, skip those that have not begun, and let the workers go."""
        with self._changed:
            self._closed = True
            self._held = False
        # The queue empties itself: every task has a step on its way to a worker. Only
        # workers that hang keep theirs, so what waits behind them is settled here.
        while (completion := self._step()) is not None:
            completion()
        self._executor.close(self.name)

    def _step(self) -> Completion | None:
        with self._changed:
            if not self._heap:
                return None
            if self._held and self._heap[0].rank[0] == Priority.PUT:
                self._parked += 1
                return None
            task = heapq.heappop(self._heap)
            late = task.deadline is not None and task.deadline.expired
            wanted = not (self._closed or late)
        return self._do(task, wanted=wanted)

    def _do(self, task: _Task, *, wanted: bool) -> Completion:
        result: object
        well: bool | None
        try:
            result, well = task.work(wanted)
        except Exception:
            # A bug of ours, or of a serde or a policy. Whoever waits must hear of the end.
            log.exception("work for %s failed", self.name)
            result, well = None, False

        def complete() -> None:
            if wanted and well is not None:
                self._judge(well)
            with self._changed:
                task.ticket.result = result
                task.ticket.done = True
                self._bytes -= task.size
                self._tasks -= 1
                self._ended += 1
                self._changed.notify_all()

        return complete

    def _judge(self, well: bool) -> None:
        if well:
            self.breaker.succeeded()
        elif self.breaker.failed():
            self._telemetry.count(Counter.BREAKER_OPENED, 1, tier=self._tier, reason="failures")
