"""The injected executor: runs the core's I/O and its waits, on threads or in a simulation."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Protocol

from hexkv.ports.runtime.clock import Deadline

Completion = Callable[[], None]
"""Runs once the work of a step is over. Short, and never raises."""

Step = Callable[[], Completion | None]
"""One piece of work for a worker. Never raises; may block for as long as a store does."""


class Executor(Protocol):
    """Lanes of workers, and the only way in which the core waits.

    A lane has workers of its own, so work on one lane never delays another. Steps of one lane
    start in the order in which they were queued, as workers become free.
    """

    def open(self, lane: str, workers: int) -> None:
        """Create a lane. Does nothing if it is open.

        Raises:
            StoreUnreachable: the workers cannot be started; then the lane does not exist.
        """
        ...

    def run(self, lane: str, step: Step) -> None:
        """Have a worker of *lane* run *step*, then the completion it returned. Never blocks."""
        ...

    def wait(self, condition: Condition, ready: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait until *ready* is true or *deadline* passes. Return the last value of *ready*.

        Called with *condition* held; code that makes *ready* true notifies it.
        """
        ...

    def close(self, lane: str) -> None:
        """Refuse further steps. Idle workers end; one that hangs in a step is abandoned."""
        ...
