"""The circuit breaker: a failing tier costs its deadline once, then no time.

Closed, calls pass. After several failures in a row, or one call that missed its deadline, it opens:
calls are refused at once. After a pause one call may pass as a probe (half open); its success
closes the breaker, its failure doubles the pause up to a limit. As in M. Nygard, "Release It!"
(2007). No timer: the next call computes the time passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from hexkv.ports import Clock


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """The limits at which a breaker opens, and the length of its pauses."""

    failures: int = 5
    """Failures in a row that open it."""

    first_pause: float = 1.0
    """Seconds before the first probe."""

    longest_pause: float = 10.0
    """Seconds between probes at most, so that a tier is back soon after an outage."""


class Breaker:
    """Decides if calls to a tier may pass. Safe from any thread."""

    def __init__(self, clock: Clock, rules: BreakerRules) -> None:
        self._clock = clock
        self._rules = rules
        self.pauses = f"{rules.first_pause:g} s, later for up to {rules.longest_pause:g} s"
        """The seconds between probes, as text."""

        self._lock = Lock()
        self._failures = 0
        self.pause = 0.0
        """Seconds between probes; zero while it is closed: then no call is needed."""

        self._opened = 0.0
        self._probe: float | None = None

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half open``."""
        with self._lock:
            if not self.pause:
                return "closed"
            return "open" if self._probe is None else "half open"

    @property
    def refuses(self) -> bool:
        """True if a call would be refused now. Reading this has no effect."""
        if not self.pause:
            return False
        with self._lock:
            return self._pausing(self._clock.now())

    def admits(self) -> bool:
        """True if a call may pass now. The one that passes an open breaker is its probe."""
        if not self.pause:
            return True
        with self._lock:
            now = self._clock.now()
            if self._pausing(now):
                return False
            if self.pause:
                self._probe = now
            return True

    def succeeded(self) -> None:
        """Note that a call was answered: the breaker is closed now."""
        if not self._failures and not self.pause:
            return
        with self._lock:
            self._failures = 0
            self.pause = 0.0
            self._probe = None

    def failed(self, *, at_once: bool = False) -> bool:
        """Note a failed call; *at_once* opens the breaker in any case. Return True if it opened."""
        with self._lock:
            self._failures += 1
            opened = not self.pause
            if not self.pause:
                if self._failures < self._rules.failures and not at_once:
                    return False
                self.pause = self._rules.first_pause
            elif self._probe is not None:
                self.pause = min(2 * self.pause, self._rules.longest_pause)
            else:
                return False  # a call from before it opened
            self._opened = self._clock.now()
            self._probe = None
            return opened

    def _pausing(self, now: float) -> bool:
        # Counted from the last probe too: after one that never answers, another may pass.
        last = self._opened if self._probe is None else self._probe
        return bool(self.pause) and now - last < self.pause
