"""The ring of the last steps, and how calls take note of theirs.

Always on, so a note is an append to a bounded deque: no lock, no object but a tuple.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import get_ident
from typing import NamedTuple

from hexkv.ports import ChunkKey, Clock, TraceStep

MOST = 4096
"""Steps that are kept in mind: some 600 kB."""

_Fields = tuple[str, str, float, float, str, str, float, int, str]


class StepRing:
    """The newest steps. Safe from any thread."""

    __slots__ = ("_rows", "add", "extend")

    def __init__(self, most: int = MOST) -> None:
        self._rows: deque[_Fields] = deque(maxlen=most)
        self.add = self._rows.append
        """Take note of the fields of a :class:`~hexkv.ports.Step`, in order."""

        self.extend = self._rows.extend
        """Likewise of several."""

    def steps(self) -> list[TraceStep]:
        """All there are, in the order in which they ended."""
        return [TraceStep._make(row) for row in self._rows.copy()]


class Spent(NamedTuple):
    """The time of one call."""

    seconds: float
    waited: float | None = None
    """Seconds of that for which it waited for tiers; ``None`` where that is not known."""

    slowest: TraceStep | None = None
    """The part that took longest."""

    parts: Sequence[_Fields] = ()
    """Each part, as the ring has it; empty where that is not known."""

    begun: float | None = None
    """Where the host works in between: when the call began, which lasts until it is told of."""

    parent: str | None = None
    """What that belongs to; ``None``: whatever is in force at its end."""


class Laps:
    """The parts of one call, one after the other: together they take as long as the call.

    A part ends with ``laps.mark((name, tier, laps.now()))``: all since the last mark was this.
    """

    __slots__ = ("_begun", "_marks", "mark", "now")

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self._begun = clock.now()
        self._marks: list[tuple[str, str, float]] = []
        self.mark = self._marks.append
        """Take note of a part's name, its tier or "", and when it ended."""

    def end(self, ring: StepRing, name: str, call: str, keys: Sequence[ChunkKey]) -> Spent:
        """The rest was the end of the call: put its parts, and the whole, into *ring*."""
        self.mark(("end", "", self.now()))
        row = f"calls {get_ident()}"
        parts: list[_Fields] = []
        waited, longest, at = 0.0, 0, self._begun
        for number, (what, tier, until) in enumerate(self._marks):
            took = until - at
            parts.append((what, row, at, took, tier, call, 0.0, 0, ""))
            if what == "read":
                waited += took
            if took > parts[longest][3]:
                longest = number
            at = until
        key, seconds = keys[-1].hex() if keys else "", at - self._begun
        ring.extend((*parts, (name, row, self._begun, seconds, "", call, 0.0, 0, key)))
        return Spent(seconds, waited, tuple.__new__(TraceStep, parts[longest]), parts)


def _seconds(step: TraceStep) -> float:
    return step.seconds


def slowest(steps: Sequence[TraceStep], keys: Sequence[ChunkKey]) -> TraceStep | None:
    """The part that took longest of the newest retrieve of the prompt that ends with *keys*."""
    key = keys[-1].hex() if keys else ""
    for whole in reversed(steps):
        if key and whole.key == key and whole.name == "retrieve":
            parts = [step for step in steps if step.call == whole.call and not step.key]
            return max(parts, key=_seconds, default=None)
    return None
