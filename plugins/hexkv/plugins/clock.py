"""The machine's clock: the only one outside simulations."""

from __future__ import annotations

import time


class SystemClock:
    """``time.monotonic`` for durations, ``time.time`` for what outlives the process."""

    __slots__ = ()

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
