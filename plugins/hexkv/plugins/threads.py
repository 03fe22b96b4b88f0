"""The executor outside simulations: daemon threads, started when their lane is opened."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Lock, Thread, local

from hexkv.ports import Deadline, Step, StoreUnreachable


class _Here(local):
    work: Callable[[], None] | None = None


_here = _Here()


def before_waiting(work: Callable[[], None] | None) -> None:
    """Set *work* to be done once, before this thread next waits, or works long, in a call of ours.

    For a thread with a task that others could take over during the wait. It may run under a lock of
    the object that is waited for, so it is short. ``None``: cancel it.
    """
    _here.work = work


def step_aside() -> None:
    """Do this thread's work that is due before it waits."""
    work, _here.work = _here.work, None
    if work is not None:
        work()


class Threads:
    """Lanes of threads. They are daemons: one that hangs in a store never keeps a process."""

    def __init__(self) -> None:
        self._lanes: dict[str, tuple[SimpleQueue[Step | None], int]] = {}
        self._lock = Lock()

    def open(self, lane: str, workers: int) -> None:
        with self._lock:
            if lane in self._lanes:
                return
            queue: SimpleQueue[Step | None] = SimpleQueue()
            self._lanes[lane] = queue, workers
        try:
            for number in range(workers):
                name = f"hexkv {lane} {number}"
                Thread(target=_work, args=(queue,), name=name, daemon=True).start()
        except RuntimeError as error:
            self.close(lane)
            raise StoreUnreachable(f"no worker of {lane} can be started: {error}") from error

    def run(self, lane: str, step: Step) -> None:
        with self._lock:
            found = self._lanes.get(lane)
        if found is not None:
            found[0].put(step)

    def wait(self, condition: Condition, ready: Callable[[], bool], deadline: Deadline) -> bool:
        if _here.work is not None and not ready():
            step_aside()
        return condition.wait_for(ready, deadline.remaining())

    def close(self, lane: str) -> None:
        with self._lock:
            queue, workers = self._lanes.pop(lane, (None, 0))
        for _ in range(workers):
            if queue is not None:
                queue.put(None)


def _work(queue: SimpleQueue[Step | None]) -> None:
    while (step := queue.get()) is not None:
        completion = step()
        if completion is not None:
            completion()
        del step, completion  # an idle thread must not keep their objects alive
