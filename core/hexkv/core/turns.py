"""Turns: who waits in a line, first come, first served."""

from __future__ import annotations

from bisect import insort
from itertools import count
from weakref import ref


class Turn:
    """The place of one caller in a line. It is gone when nobody has it any more."""

    __slots__ = ("__weakref__",)


class Line:
    """Callers that wait, by priority and by when they came. Used under its owner's lock.

    A caller leaves the line when it is done, and at the latest when its turn dies with the
    call: an exception out of nowhere never leaves behind one that all others wait for.
    """

    def __init__(self) -> None:
        self._turns: list[tuple[int, int, ref[Turn]]] = []
        self._order = count()

    def join(self, turn: Turn, priority: int = 0) -> None:
        """Stand behind all of the same *priority*, and of those that matter more."""
        insort(self._turns, (priority, next(self._order), ref(turn)))

    def leave(self, turn: Turn) -> bool:
        """Wait no more. Whether others still do."""
        self._turns = [other for other in self._turns if other[2]() not in (turn, None)]
        return bool(self._turns)

    @property
    def first(self) -> Turn | None:
        """Whose turn it is; ``None`` if nobody waits."""
        while self._turns:
            turn = self._turns[0][2]()
            if turn is not None:
                return turn
            del self._turns[0]
        return None
