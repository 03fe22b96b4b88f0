"""The memory of evicted chunks: a line for each run of them, in a fixed table."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from hexkv.core.policies.adaptive._ages import EPOCH_BITS

_BITS = 16
_TIME_BITS = 28
_MOST = 4095


class Run(NamedTuple):
    """Consecutive chunks of one request that were evicted since."""

    chunks: int
    time: int
    """The last use of the chunk that was evicted last."""

    hits: int
    turn: int


class Runs:
    """A direct-mapped table of runs, by the name of each run's first chunk; newest wins.

    The end of a run is evicted before its beginning, so one line can count it. A line takes 8
    bytes, and there are as many as the tier ever held chunks, 65,536 at least.

    Names are 32 bits. The lower ones determine the line, the upper 16 are kept in it, and two runs
    that agree in both are one to the policy: an error too rare to matter.
    """

    def __init__(self) -> None:
        self._lines = array("Q", bytes(8 << _BITS))
        self._mask = (1 << _BITS) - 1

    def add(self, name: int, time: int, hits: int, turn: int) -> None:
        """Count one more evicted chunk of the run *name*."""
        at = name & self._mask
        line = self._lines[at]
        count = 1
        if line and line >> 48 == name >> 16:
            count = min(((line >> 36) & _MOST) + 1, _MOST)
        epoch = (time >> EPOCH_BITS) & ((1 << _TIME_BITS) - 1)
        self._lines[at] = (name >> 16) << 48 | count << 36 | epoch << 8 | hits << 4 | turn

    def take(self, name: int) -> Run | None:
        """Return the record of the run *name*, and forget it."""
        at = name & self._mask
        line = self._lines[at]
        if not line or line >> 48 != name >> 16:
            return None
        self._lines[at] = 0
        epoch = (line >> 8) & ((1 << _TIME_BITS) - 1)
        return Run((line >> 36) & _MOST, epoch << EPOCH_BITS, (line >> 4) & 15, line & 15)

    def fit(self, chunks: int) -> None:
        """Grow to at least as many lines as there are *chunks*."""
        while len(self._lines) < chunks:
            self._lines += self._lines  # each is found by one more bit of its name, 0 or 1
        self._mask = len(self._lines) - 1
