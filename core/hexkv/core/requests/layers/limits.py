"""How long a layerwise call waits, and how many blocks it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from weakref import WeakKeyDictionary

from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockPool
from hexkv.core.steps import Spent
from hexkv.ports import Clock, Deadline, traceparent


class TimeBudget:
    """How long one call waits, over all its steps."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.spent = 0.0
        self._clock = clock
        self._begun = clock.now()
        self._parent = traceparent()
        self._seconds = seconds

    @contextmanager
    def step(self) -> Iterator[Deadline]:
        """The deadline of one step, as far away as the steps before have left."""
        start = self._clock.now()
        try:
            yield Deadline.after(self._clock, max(0.0, self._seconds - self.spent))
        finally:
            self.spent += self._clock.now() - start

    def so_far(self) -> Spent:
        """The time of the call up to now."""
        return Spent(self.spent, begun=self._begun, parent=self._parent)

    def end(self) -> Deadline:
        """The deadline of what has to end before the call can: as far away as the first step's."""
        return Deadline.after(self._clock, self._seconds)


def room(pace: Pipelining, pool: BlockPool) -> int:
    """How many blocks one call may hold, so that others can go on."""
    return max(1, pace.keepable(pool) // pool.slot_bytes)


class Hosts:
    """Threads that hold blocks while the model computes. Safe from any thread.

    To wait for blocks that the same thread holds would be to wait for nothing.
    """

    def __init__(self) -> None:
        self._holding: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._lock = Lock()

    def hold(self, call: object) -> None:
        """This thread has begun *call*."""
        with self._lock:
            self._holding[call] = get_ident()

    def leave(self, call: object) -> None:
        """It holds nothing any more."""
        with self._lock:
            self._holding.pop(call, None)

    def may_wait(self) -> bool:
        """True if this thread holds nothing."""
        if not self._holding:
            return True
        with self._lock:
            return get_ident() not in self._holding.values()
