"""Turns: callers that wait in a line, first come, first served."""

from __future__ import annotations

from bisect import insort
from itertools import count
from threading import Condition, RLock
from weakref import ref


class Turn:
    """The place of one caller in a line. It ends with the last reference to it."""

    __slots__ = ("__weakref__", "changed")

    def __init__(self, line: Line) -> None:
        self.changed = Condition(line.lock)
        """Notified when the caller may be able to proceed."""


class Line:
    """Waiting callers, by priority and by order of arrival. Used under its owner's *lock*.

    A caller leaves the line when it is done, and at the latest when its turn dies with the call: an
    unexpected exception never leaves behind a turn that all others wait for.

    Only the first can proceed, so only the first is woken: of sixteen threads that wait for one
    block, fifteen would wake up without a block for them, each with the interpreter's lock.
    """

    def __init__(self, lock: RLock) -> None:
        self.lock = lock
        self.turns: list[tuple[int, int, ref[Turn]]] = []
        """Those in the line, some perhaps dead. Usually empty: then no call is needed."""

        self._order = count()

    def join(self, turn: Turn, priority: int = 0) -> None:
        """Join behind all of the same *priority*, and of more important ones."""
        insort(self.turns, (priority, next(self._order), ref(turn)))

    def leave(self, turn: Turn) -> None:
        """Stop waiting; the next one may be able to proceed."""
        self.turns = [other for other in self.turns if other[2]() not in (turn, None)]
        self.wake()

    def wake(self) -> None:
        """Wake the first caller: a resource came free."""
        turn = self.first
        if turn is not None:
            turn.changed.notify()

    def wake_all(self) -> None:
        """Wake all callers: it may be useless to wait longer."""
        for _, _, place in self.turns:
            turn = place()
            if turn is not None:
                turn.changed.notify()

    @property
    def first(self) -> Turn | None:
        """The caller whose turn it is; ``None`` if there is none."""
        while self.turns:
            turn = self.turns[0][2]()
            if turn is not None:
                return turn
            del self.turns[0]
        return None
