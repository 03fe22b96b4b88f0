"""The machine's clock: the only one outside simulations."""

from __future__ import annotations

import time


class SystemClock:
    """``time.monotonic`` for durations, ``time.time`` for what outlives the process."""

    __slots__ = ()

    # Not functions of Python's that call these: the core asks a dozen times in each call.
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
