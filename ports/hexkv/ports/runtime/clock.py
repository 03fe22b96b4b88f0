"""Injected time: no code below the composition root reads a clock of its own."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Clock(Protocol):
    """Two kinds of time. Called from every thread; never raises, never blocks."""

    def now(self) -> float:
        """Return seconds since an arbitrary moment; never goes back. For deadlines, durations."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC, at least 1. For times that outlive a process.

        Frames have no room for a sign, and lives of nodes none for zero.
        """
        ...


class Deadline(NamedTuple):
    """The moment at which waiting for an answer ends."""

    clock: Clock
    at: float
    """On ``clock.now()``'s scale."""

    usual: float = 0.0
    """The usual seconds, if a caller chose fewer: only a store silent for as long is at fault."""

    @classmethod
    def after(cls, clock: Clock, seconds: float, usual: float = 0.0) -> Deadline:
        """Return a deadline *seconds* from now, where *usual* ones may be longer."""
        row = clock, clock.now() + seconds, usual if seconds < usual else 0.0
        return tuple.__new__(cls, row)  # every call has one: the class takes twice as long

    def remaining(self) -> float:
        """Return the seconds left, never negative, for use as a timeout."""
        return max(0.0, self.at - self.clock.now())

    @property
    def expired(self) -> bool:
        """True if the deadline has passed."""
        return self.clock.now() >= self.at
