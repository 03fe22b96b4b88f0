"""The machine's clock: the only one outside simulations."""

from __future__ import annotations

import time


class SystemClock:
    """``time.monotonic`` for durations, ``time.time`` for times that outlive the process."""

    __slots__ = ()

    # Not a Python function that calls it: the core reads this a dozen times in each call.
    now = staticmethod(time.monotonic)

    @staticmethod
    def wall() -> float:
        return max(1.0, time.time())  # some systems let their clock be set before 1970
