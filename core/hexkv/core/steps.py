"""The ring of the last steps, and the recording of a call's steps.

Always on, so recording a step is an append to a bounded deque: no lock, no object but a tuple.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import get_ident
from typing import NamedTuple

from hexkv.ports import ChunkKey, Clock, TraceStep

MOST = 4096
"""The number of steps that are kept: some 600 kB."""

_Fields = tuple[str, str, float, float, str, str, float, int, str]


class StepRing:
    """The newest steps. Safe from any thread."""

    __slots__ = ("_rows", "add", "extend")

    def __init__(self, most: int = MOST) -> None:
        self._rows: deque[_Fields] = deque(maxlen=most)
        self.add = self._rows.append
        """Record the fields of a :class:`~hexkv.ports.Step`, in order."""

        self.extend = self._rows.extend
        """Record the fields of several."""

    def steps(self) -> list[TraceStep]:
        """Return all steps, in the order in which they ended."""
        return [TraceStep._make(row) for row in self._rows.copy()]


class Spent(NamedTuple):
    """The time of one call."""

    seconds: float
    waited: float | None = None
    """Seconds of that for which it waited for tiers; ``None`` if not known."""

    slowest: TraceStep | None = None
    """The part that took longest."""

    parts: Sequence[_Fields] = ()
    """Each part, as the ring has it; empty if not known."""

    begun: float | None = None
    """If the host works in between: when the call began, which lasts until it is reported."""

    parent: str | None = None
    """The parent span; ``None``: the current one at its end."""


class Laps:
    """The parts of one call, one after the other: together they take as long as the call.

    A part ends with ``laps.mark((name, tier, laps.now()))``: it began at the last mark.
    """

    __slots__ = ("_begun", "_marks", "mark", "now")

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self._begun = clock.now()
        self._marks: list[tuple[str, str, float]] = []
        self.mark = self._marks.append
        """Record a part's name, its tier or "", and the time of its end."""

    def end(self, ring: StepRing, name: str, call: str, keys: Sequence[ChunkKey]) -> Spent:
        """Record the rest as the end of the call: put its parts, and the whole, into *ring*."""
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
    """The longest part of the newest retrieve of the prompt that ends with *keys*."""
    key = keys[-1].hex() if keys else ""
    for whole in reversed(steps):
        if key and whole.key == key and whole.name == "retrieve":
            parts = [step for step in steps if step.call == whole.call and not step.key]
            return max(parts, key=_seconds, default=None)
    return None
