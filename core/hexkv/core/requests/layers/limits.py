"""The limits of layered calls: their time to wait, and their number of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from weakref import WeakKeyDictionary

from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.requests.accounts import Spent
from hexkv.core.requests.checks import timeout_or
from hexkv.ports import Clock, Deadline, traceparent


class TimeBudget:
    """The time that one call may wait, over all its steps."""

    def __init__(self, clock: Clock, usual: float, timeout: object = None) -> None:
        """Give a call the *usual* seconds, or *timeout* if it is not ``None``.

        Raises:
            InvalidRequest: as :func:`hexkv.core.requests.checks.check_seconds`.
        """
        self.spent = 0.0
        self._clock = clock
        self._begun = clock.now()
        self._parent = traceparent()
        self._seconds = timeout_or(timeout, usual)
        self._usual = usual if self._seconds < usual else 0.0

    @contextmanager
    def step(self) -> Iterator[Deadline]:
        """Yield the deadline of one step, after the time that earlier steps have left."""
        start = self._clock.now()
        try:
            left = max(0.0, self._seconds - self.spent)
            yield Deadline.after(self._clock, left, self._usual)
        finally:
            self.spent += self._clock.now() - start

    def so_far(self) -> Spent:
        """Return the time spent in the call up to now."""
        return Spent(self.spent, begun=self._begun, parent=self._parent)

    def end(self) -> Deadline:
        """Return the deadline of work that has to end before the call: the full time from now."""
        return Deadline.after(self._clock, self._seconds, self._usual)


def room(pace: Pipelining, slots: int) -> int:
    """Return how many of *slots* chunks in memory one call may hold, so that others can go on."""
    return max(1, slots - pace.passage(slots))


class Hosts:
    """The threads that hold blocks while the model computes. Safe from any thread.

    A thread that waited for blocks that it holds itself would wait until its deadline.
    """

    def __init__(self) -> None:
        self._holding: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._lock = Lock()

    def hold(self, call: object) -> None:
        """Record that this thread has begun *call*."""
        with self._lock:
            self._holding[call] = get_ident()

    def leave(self, call: object) -> None:
        """Record that *call* holds nothing from now on."""
        with self._lock:
            self._holding.pop(call, None)

    def may_wait(self) -> bool:
        """True if this thread holds nothing."""
        if not self._holding:
            return True
        with self._lock:
            return get_ident() not in self._holding.values()
