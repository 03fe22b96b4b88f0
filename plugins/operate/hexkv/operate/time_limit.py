"""The time limit of a verb of administration: whatever hangs costs the verb that time once."""

from __future__ import annotations

from hexkv.ports import Clock, Deadline


class TimeLimit:
    """The deadline of a verb; each few chunks that follow done ones renew it. For one thread."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        """Begin now; *seconds* to the end, or to the next few chunks."""
        self._clock = clock
        self._seconds = seconds
        self._advanced = False
        self.deadline = Deadline.after(clock, seconds)
        """The deadline of each wait of the verb."""

    @property
    def half(self) -> Deadline:
        """A deadline that leaves half of the remaining time."""
        return Deadline.after(self._clock, self.deadline.remaining() / 2)

    def advance(self) -> None:
        """Note that some chunks of this step are done: the next step has all the time again."""
        self._advanced = True

    def go_on(self) -> bool:
        """Begin the next step. Return False if the time is over."""
        if self._advanced:
            self._advanced = False
            self.deadline = Deadline.after(self._clock, self._seconds)
        return not self.deadline.expired
