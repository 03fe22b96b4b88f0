"""Where the core's I/O runs and how it waits, injected: threads in life, events in a simulation."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Protocol

from hexkv.ports.clock import Deadline

Completion = Callable[[], None]
"""What is to happen once the work of a step is over. Short, and never raises."""

Step = Callable[[], Completion | None]
"""One piece of work for a worker. Never raises; may block for as long as a store does."""


class Executor(Protocol):
    """Lanes of workers, and the only way in which the core waits.

    A lane is a number of workers of its own, so that work on one lane never delays another.
    Steps of one lane start in the order in which they came, as workers come free.
    """

    def open(self, lane: str, workers: int) -> None:
        """Make a lane. Opening one that is open does nothing.

        Raises:
            StoreUnreachable: the workers cannot be started; there is no such lane.
        """
        ...

    def run(self, lane: str, step: Step) -> None:
        """Have a worker of *lane* run *step*, then the completion it gave. Never blocks."""
        ...

    def wait(self, condition: Condition, ready: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait until *ready* says so or *deadline* passes. What *ready* said last.

        Called with *condition* held; whoever makes *ready* true notifies it.
        """
        ...

    def close(self, lane: str) -> None:
        """Take no more steps. Idle workers end; one that hangs in a step is left behind."""
        ...
