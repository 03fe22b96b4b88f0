"""A test for linearizability of the calls of several threads on one key.

The search of Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with the memory
of Lowe, "Testing for linearizability" (2017): each call took effect at one moment between its
start and its end; find an order of these moments in which every answer is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Act(Enum):
    """The kind of a call."""

    WRITE = auto()
    READ = auto()
    CONTAINS = auto()
    DELETE = auto()


@dataclass(frozen=True, slots=True)
class Event:
    """One call for one key, by one thread."""

    act: Act
    value: int
    """Version that was written or read, 0 for a miss; or 1 and 0 for yes and no."""

    began: int
    """Place of the call's start in the order of all starts and ends."""

    ended: int
    """Place of its end."""


def could_be(history: Sequence[Event], *, loses: bool = False) -> bool:
    """True if *history*, of one key that was absent before, has a right order.

    Args:
        history: in any order; versions are greater than 0.
        loses: True if the chunk may vanish at any moment, for good.
    """
    calls = sorted(history, key=lambda event: event.began)
    everything = (1 << len(calls)) - 1
    tried = {(0, 0)}
    open_ = [(0, 0)]
    while open_:
        done, version = open_.pop()
        if done == everything:
            return True
        pending = [i for i in range(len(calls)) if not done >> i & 1]
        first_end = min(calls[i].ended for i in pending)
        for i in pending:
            if calls[i].began > first_end:
                break  # it began after another had ended, which comes first
            for after in _after(calls[i], version, loses=loses):
                state = (done | 1 << i, after)
                if state not in tried:
                    tried.add(state)
                    open_.append(state)
    return False


def _after(call: Event, version: int, *, loses: bool) -> list[int]:
    """The versions that may be there after *call*, if its answer is right; none if it is not."""
    before = {version, 0} if loses else {version}
    match call.act:
        case Act.WRITE:
            return [call.value]
        case Act.READ:
            return [call.value] if call.value in before else []
        case Act.CONTAINS:
            return [v for v in before if bool(v) == bool(call.value)]
        case Act.DELETE:
            return [0] if any(bool(v) == bool(call.value) for v in before) else []
