"""The seconds that the model takes for a step, by the device's own clock where it has one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

import torch

_MOST = 64
"""Steps under way that are timed; others are left out."""


class Mark(Protocol):
    """A place in the work that is queued for the model."""

    def until(self, later: Self) -> float | None:
        """Return the seconds to a *later* mark; ``None`` while that is not reached."""
        ...


class _HostMark:
    """A mark where the model runs as it is called."""

    def __init__(self) -> None:
        self._when = time.monotonic()

    def until(self, later: _HostMark) -> float | None:
        return later._when - self._when


class _StreamMark:
    """A mark in the current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def until(self, later: _StreamMark) -> float | None:
        if not later._event.query():  # type: ignore[no-untyped-call]
            return None
        return float(self._event.elapsed_time(later._event)) / 1000


def marks(device: torch.device) -> Callable[[], Mark]:
    """Return a function that makes marks on *device*."""
    return (lambda: _StreamMark(device)) if device.type == "cuda" else _HostMark


class StepTimer:
    """Times steps of one rank, and never waits for them. For vLLM's thread."""

    def __init__(self, mark: Callable[[], Mark] = _HostMark) -> None:
        self._mark = mark
        self._begun: Mark | None = None
        self._running: deque[tuple[int, Mark, Mark]] = deque()

    def begin(self) -> None:
        """Note that a step begins."""
        self._begun = self._mark() if len(self._running) < _MOST else None

    def end(self, number: int) -> None:
        """Note that all of step *number* is queued."""
        if self._begun is not None:
            self._running.append((number, self._begun, self._mark()))
            self._begun = None

    def take(self) -> dict[int, float]:
        """Return the seconds of the steps that have ended since the last call, by number."""
        over: dict[int, float] = {}
        while self._running:
            number, first, last = self._running[0]
            if (seconds := first.until(last)) is None:
                break
            over[number] = seconds
            self._running.popleft()
        return over
