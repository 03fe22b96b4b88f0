"""The end of an engine: everything released in order, by ``close`` or after it was dropped."""

from __future__ import annotations

import logging
from _thread import start_new_thread
from collections.abc import Callable
from dataclasses import dataclass, field
from warnings import warn

from hexkv.core.home import Home
from hexkv.core.memory.background import LANE
from hexkv.core.requests.pipeline import Pipeline
from hexkv.ports import Deadline

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """The parts of an engine to close. None refers to the engine, which they may outlive."""

    requests: Pipeline
    home: Home
    seconds: float
    first: list[Callable[[], None]] = field(default_factory=list)
    """Called first, to end objects beside the engine. Never raise, and do not refer to it."""

    def run(self, until: Deadline | None = None) -> None:
        """Finish queued writes and close the tiers, up to a deadline. Never raises."""
        if until is None:
            until = Deadline.after(self.requests.runtime.clock, self.seconds)
        while self.first:
            self.first.pop()()
        self.requests.runtime.executor.close(LANE)
        if left := self.requests.close(until):
            log.error("closed with leases left, their memory stays allocated: %s", left)

    def abandoned(self) -> None:
        """End an engine that was dropped without having been closed.

        A garbage collection may call this at any point: so a thread of its own does the work, and
        is started in a way that takes no lock.
        """
        if self.home.left:
            return
        advice = "close it, or use it as a context manager"
        try:
            start_new_thread(self.run, ())
        except RuntimeError:  # the machine, or the interpreter at its end, starts no thread
            advice += "; no thread starts that could do it, so its stores stay open"
        warn(
            f"an engine was dropped without close(): {advice}",
            ResourceWarning,
            stacklevel=2,
        )
