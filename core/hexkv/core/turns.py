"""Turns: who waits in a line, first come, first served."""

from __future__ import annotations

from bisect import insort
from itertools import count
from threading import Condition, RLock
from weakref import ref


class Turn:
    """The place of one caller in a line. It is gone when nobody has it any more."""

    __slots__ = ("__weakref__", "changed")

    def __init__(self, line: Line) -> None:
        self.changed = Condition(line.lock)
        """Notified when the caller may be able to go on."""


class Line:
    """Callers that wait, by priority and by when they came. Used under its owner's *lock*.

    A caller leaves the line when it is done, and at the latest when its turn dies with the
    call: an exception out of nowhere never leaves behind one that all others wait for.

    Only the first can go on, so only the first is woken: of sixteen threads that wait for one
    block, fifteen would wake up to find that it is not for them, each with the interpreter's lock.
    """

    def __init__(self, lock: RLock) -> None:
        self.lock = lock
        self._turns: list[tuple[int, int, ref[Turn]]] = []
        self._order = count()

    def join(self, turn: Turn, priority: int = 0) -> None:
        """Stand behind all of the same *priority*, and of those that matter more."""
        insort(self._turns, (priority, next(self._order), ref(turn)))

    def leave(self, turn: Turn) -> None:
        """Wait no more; the next one may be able to go on."""
        self._turns = [other for other in self._turns if other[2]() not in (turn, None)]
        self.wake()

    def wake(self) -> None:
        """Something came free: have the first one look."""
        turn = self.first
        if turn is not None:
            turn.changed.notify()

    def wake_all(self) -> None:
        """Have everybody look, because there may be nothing to wait for any more."""
        for _, _, place in self._turns:
            turn = place()
            if turn is not None:
                turn.changed.notify()

    @property
    def first(self) -> Turn | None:
        """Whose turn it is; ``None`` if nobody waits."""
        while self._turns:
            turn = self._turns[0][2]()
            if turn is not None:
                return turn
            del self._turns[0]
        return None
