"""The I/O scheduler: one place for priorities, queues, deadlines and breakers.

Every tier has a lane for reading and a lane for writing, each with workers, a queue bounded in
bytes and a breaker of its own. So a slow tier never delays a fast one, loads never wait behind
stores, and a disk that refuses writes still reads. A task whose caller has stopped waiting is
skipped if it has not begun; if it has, its memory stays leased until it ends.

A full queue makes a caller wait if it may: if it holds nothing that others may wait for. Such
callers wait for room here, before they lease blocks, in order of arrival; a caller that cannot wait
takes the room that is left, and never overtakes waiting ones.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Sequence
from threading import Condition, RLock
from typing import TypeVar
from weakref import ref

from hexkv.core.io.breaker import Breaker
from hexkv.core.io.rules import WORDS, LaneRules, Priority, Refused
from hexkv.core.io.ticket import Room, Task, Ticket
from hexkv.core.notices import READING, WRITING, Notices
from hexkv.core.runtime import StepRing
from hexkv.core.turns import Line, Turn
from hexkv.ports import Clock, Completion, CounterName, Deadline, Executor, Reason, Telemetry

T = TypeVar("T")

log = logging.getLogger(__name__)

_OPENED = {
    Reason.FAILURES: "several calls in a row failed",
    Reason.TIMED_OUT: "no call was answered in time",
}


class Lane:
    """One direction of one tier: a queue, workers and a breaker."""

    def __init__(
        self,
        name: str,
        rules: LaneRules,
        executor: Executor,
        clock: Clock,
        telemetry: Telemetry,
        notices: Notices,
        steps: StepRing | None = None,
    ) -> None:
        self.name = name
        self._tier = name.rpartition("/")[0] or name
        self._row, self._clock = name.rpartition(" ")[0] or name, clock
        self._steps = StepRing(1) if steps is None else steps
        self.breaker = Breaker(clock, rules.breaker)
        self.queue_bytes = rules.queue_bytes
        """The most bytes of waiting and running tasks."""

        self._executor, self._telemetry = executor, telemetry
        self._direction = WRITING if self._row.endswith("/write") else READING
        self._notices = notices
        self._heap: list[Task] = []
        self._live: dict[Ticket[object], Task] = {}
        """Tasks that wait or run."""

        self._bytes = 0
        self._torn = False
        self._rooms: set[ref[Room]] = set()
        """References to reserved rooms; dead ones are removed when the queue is counted."""

        self._order = itertools.count()
        self._ended = 0
        self._parked = 0
        self._held = self._closed = False
        # Entered directly, not through the condition: no signal comes between it and the body.
        self._lock = RLock()
        self._line = Line(self._lock)
        self._idle = Condition(self._lock)
        executor.open(name, rules.workers)

    @property
    def pending_bytes(self) -> int:
        """Bytes of tasks that wait or run."""
        with self._lock:
            self._tasks()
            return self._bytes

    @property
    def pending(self) -> int:
        """Tasks that wait or run."""
        with self._lock:
            return len(self._tasks())

    def admit(
        self,
        priority: Priority,
        sizes: Sequence[int],
        deadline: Deadline,
        *,
        final: bool = True,
    ) -> Room:
        """Return room for the first of *sizes*, as many as fit as soon as the first does.

        In order of arrival among callers of one *priority*. Only a caller that holds neither blocks
        nor room of another lane may wait.

        Args:
            priority: the priority of the task.
            sizes: bytes of each part of it.
            deadline: how long to wait; with one that has passed, only the room that is free now.
            final: True if the lane counts as dead when no task at all ends before *deadline*.
                Otherwise this is one failure of several.

        Raises:
            Refused: the queue was full until *deadline*; or the breaker is open, or the lane was
                closed.
        """
        with self._lock:
            if not (self._line.turns and self._line.first) and self._fits(sizes[0]):
                self._check()
                return self._room(sizes)
        turn = Turn(self._line)
        try:
            with self._lock:
                self._line.join(turn, priority)
                if deadline.expired and not self._may_pass(turn, sizes):
                    raise Refused(Reason.QUEUE_FULL)
                self._check()
                probe, ended = self.breaker.state != "closed", self._ended

                def ready() -> bool:
                    return bool(self._bar(probe)) or self._may_pass(turn, sizes)

                if self._executor.wait(turn.changed, ready, deadline):
                    if bar := self._bar(probe):
                        raise Refused(bar)
                    return self._room(sizes)
                dead = self._ended == ended and self._is_silent(deadline)
        finally:
            with self._lock:
                self._line.leave(turn)
        if dead:
            self._blame(at_once=final)
        raise Refused(Reason.QUEUE_FULL)

    def leave(self, room: Room) -> None:
        """Return the bytes that a room's task did not use."""
        with self._lock:
            self._rooms.discard(ref(room))
            if self._line.turns:
                self._line.wake()

    def submit(
        self,
        priority: Priority,
        size: int,
        work: Callable[[bool], tuple[T, bool | None]],
        deadline: Deadline | None = None,
        room: Room | None = None,
    ) -> Ticket[T]:
        """Queue *work*.

        Args:
            priority: which task goes first.
            size: bytes that it moves, or holds.
            work: called with ``True`` once to do the work; or with ``False`` if it was abandoned,
                came too late or the lane was closed, to release its resources; the latter may
                happen twice. Returns its result, and True if the store worked (``None`` if that is
                not known). Never raises.
            deadline: after which it need not begin.
            room: of at least *size* bytes, from :meth:`admit`. It is used up.

        Raises:
            Refused: the breaker is open, the queue is full, or the lane was closed.
        """
        ticket: Ticket[T] = Ticket(self)
        with self._lock:
            if room is None and not self._closed and not self.takes(size):
                raise Refused(Reason.QUEUE_FULL)
            if room is None or self._closed:
                self._check()
            rank = (int(priority), next(self._order))
            when = WORDS[priority], self._clock.now()
            task = Task(rank, size, work, ticket, deadline, *when)  # type: ignore[arg-type]
            # The step first: one that finds no task costs little, but a task without one would
            # stay for ever, if an unexpected exception came between the two.
            self._executor.run(self.name, self._step)
            self._torn = True
            heapq.heappush(self._heap, task)
            self._live[task.ticket] = task
            self._bytes += size
            self._torn = False
            if room is not None:
                self._rooms.discard(ref(room))
        return ticket

    def wait(self, ticket: Ticket[T], deadline: Deadline) -> bool:
        """See :meth:`Ticket.wait`."""
        with self._lock:
            ended, hopeless = self._ended, deadline.expired
            if self._await(ticket, deadline):
                return True
            if self._ended != ended or hopeless or not self._is_silent(deadline):
                return False  # slow, or others used up the time; but not dead
        self._blame(at_once=True)
        return False

    def peek(self, ticket: Ticket[T], deadline: Deadline) -> bool:
        """See :meth:`Ticket.peek`."""
        with self._lock:
            return self._await(ticket, deadline)

    def abandon(self, ticket: Ticket[T]) -> None:
        """See :meth:`Ticket.abandon`.

        Behind hanging workers, an abandoned task would otherwise hold its blocks as long as they
        hang.
        """
        with self._lock:
            task = next((task for task in self._heap if task.ticket is ticket), None)
            if task is None:
                return
            task.wanted = False
        # It stays queued until this is done: if an exception intervenes, a worker repeats it,
        # and releasing the same resources a second time has no effect.
        self._do(task, wanted=False)()
        with self._lock:
            if task in self._heap:
                self._heap = [other for other in self._heap if other is not task]
                heapq.heapify(self._heap)

    def takes(self, size: int) -> bool:
        """True if a task of *size* bytes fits into the queue, and overtakes no waiting caller."""
        with self._lock:
            free = not (self._line.turns and self._line.first)
            return not size or (free and self._fits(size))

    def drain(self, deadline: Deadline) -> bool:
        """Wait until no task waits or runs. Return True if this ends before *deadline*."""
        with self._lock:
            return self._executor.wait(self._idle, lambda: not self._tasks(), deadline)

    def hold(self) -> None:
        """Begin no put until :meth:`unhold`."""
        with self._lock:
            self._held = True

    def unhold(self) -> None:
        """Begin the puts that were held back."""
        with self._lock:
            self._held = False
            parked, self._parked = self._parked, 0
        for _ in range(parked):
            self._executor.run(self.name, self._step)

    def close(self) -> None:
        """Refuse new tasks, skip those that have not begun, and stop the workers."""
        with self._lock:
            self._closed = True
            self._held = False
            self._line.wake_all()
        # The queue empties without help: every task has a step on its way to a worker. Only
        # hanging workers keep theirs, so the tasks that wait behind them are settled here.
        while (completion := self._step()) is not None:
            completion()
        self._executor.close(self.name)

    def _step(self) -> Completion | None:
        with self._lock:
            self._tasks()
            if not self._heap:
                return None
            if self._held and self._heap[0].rank[0] == Priority.PUT:
                self._parked += 1
                return None
            task = heapq.heappop(self._heap)
            late = task.deadline is not None and task.deadline.expired
            wanted = task.wanted and not (self._closed or late)
        return self._do(task, wanted=wanted)

    def _do(self, task: Task, *, wanted: bool) -> Completion:
        result: object
        well: bool | None
        begun, unanswered = self._clock.now(), self._notices.unanswered
        try:
            result, well = task.work(wanted)
        except BaseException as error:
            # A bug of ours, or of a serde or a policy, which may even exit. Waiting callers must
            # learn of the end, and the queue must get its bytes back.
            if not (wanted or isinstance(error, Exception)):
                raise  # in a caller that abandons the task or closes the lane, not in a worker
            log.exception("work for %s failed", self.name)
            result, well = None, False

        if wanted:
            took, row, tier = self._clock.now() - begun, self._row, self._tier
            waited = begun - task.queued
            self._steps.add((task.name, row, begun, took, tier, "", waited, task.size, ""))

        def complete() -> None:
            if wanted and well:
                self.breaker.succeeded()
                self._notices.answers(self._direction, unanswered)
            elif wanted and well is not None and not _hurried(task.deadline):
                self._failed(Reason.FAILURES)
            with self._lock:
                task.ticket.result = result
                task.ticket.done = True
                self._torn = True
                if self._live.pop(task.ticket, None) is not None:
                    self._bytes -= task.size
                self._torn = False
                self._ended += 1
                if task.ticket.changed is not None:
                    task.ticket.changed.notify_all()
                if not self._live:
                    self._idle.notify_all()
                if self.breaker.refuses:
                    self._line.wake_all()
                else:
                    self._line.wake()

        return complete

    def _await(self, ticket: Ticket[T], deadline: Deadline) -> bool:
        if not ticket.done and ticket.changed is None:
            ticket.changed = Condition(self._lock)
        changed = ticket.changed
        return changed is None or self._executor.wait(changed, lambda: ticket.done, deadline)

    def _check(self) -> None:
        """Raise Refused if the lane was closed, or the breaker is open."""
        if self._closed or (self.breaker.pause and not self.breaker.admits()):
            raise Refused(Reason.CLOSED if self._closed else Reason.TIER_OFF)

    def _tasks(self) -> dict[Ticket[object], Task]:
        """Tasks that wait or run; counted again if an exception interrupted a change."""
        if self._torn:
            self._live.update((task.ticket, task) for task in self._heap)
            self._bytes = sum(task.size for task in self._live.values())
            self._torn = False
        return self._live

    def _room(self, sizes: Sequence[int]) -> Room:
        room = Room(self, sizes, self.queue_bytes - self._queued())
        self._rooms.add(ref(room))
        return room

    def _queued(self) -> int:
        """Bytes of the queue that are taken or reserved."""
        self._tasks()
        queued = self._bytes
        for kept in [*self._rooms] if self._rooms else ():
            room = kept()
            if room is None:
                self._rooms.discard(kept)
            else:
                queued += room.size
        return queued

    def _fits(self, size: int) -> bool:
        queued = self._queued()
        return not queued or queued + size <= self.queue_bytes

    def _bar(self, probe: bool) -> Reason | None:
        """Return why waiting is useless; a probe waits in spite of the breaker."""
        if self._closed:
            return Reason.CLOSED
        return Reason.TIER_OFF if not probe and self.breaker.refuses else None

    def _may_pass(self, turn: Turn, sizes: Sequence[int]) -> bool:
        return self._line.first is turn and self._fits(sizes[0])

    def _is_silent(self, deadline: Deadline) -> bool:
        """True if a task waits or runs for as long as callers usually wait."""
        first = min([task.queued for task in self._live.values()], default=self._clock.now())
        return not deadline.usual or self._clock.now() - first >= deadline.usual

    def _blame(self, *, at_once: bool) -> None:
        """Note that the lane ended no task at all while a caller waited."""
        self._failed(Reason.TIMED_OUT, at_once=at_once)
        with self._lock:
            self._line.wake_all()  # callers that wait for room return if the breaker opened

    def _failed(self, why: Reason, *, at_once: bool = False) -> None:
        opened, words = self.breaker.failed(at_once=at_once), _OPENED[why]
        if self.breaker.pause and why is Reason.TIMED_OUT:
            self._notices.failed(self._direction, words, outage=self._direction)
        if opened:
            self._notices.switched_off(self._direction, self.breaker.pauses, words)
            self._telemetry.count(CounterName.BREAKER_OPENED, 1, tier=self._tier, reason=why)


def _hurried(deadline: Deadline | None) -> bool:
    """True if a task had less time than usual, and is over it: its failure shows nothing."""
    return deadline is not None and deadline.usual > 0 and deadline.expired
