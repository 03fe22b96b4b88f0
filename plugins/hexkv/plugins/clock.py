"""The machine's clock: the only one outside simulations."""

from __future__ import annotations

import time


class SystemClock:
    """``time.monotonic`` for durations, ``time.time`` for times that outlive the process."""

    __slots__ = ()

    # Not Python functions that call these: the core reads the clock a dozen times in each call.
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
