"""How fast a host computes prompts, by the tokens that it computes, as it measures its steps.

A few tokens behind a long prefix take as long as many: so they are no measure of a whole prompt.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, Protocol

_LEAST = 64
"""Tokens of prompts in a step that is measured. Steps that generate show nothing about prompts."""

_MOST = 4096
"""Steps, or prompts, that are remembered: the report of a step may be lost."""

_MOST_RUNNING = 64
"""Steps under way that are timed; others are left out."""

_KEEP = 0.5
"""The factor by which earlier prompts decay with each new one: the first of a kind may compile."""


@dataclass(slots=True)
class _Speed:
    tokens: float = 0.0
    seconds: float = 0.0


class ComputeSpeed:
    """Tokens computed per second, for each power of two of their number. Safe from any thread."""

    def __init__(self) -> None:
        self._speeds: dict[int, _Speed] = {}
        self._lock = Lock()

    def observe(self, tokens: int, seconds: float) -> None:
        """Note that *tokens* of one prompt took *seconds* to compute."""
        if tokens <= 0 or seconds <= 0:
            return
        with self._lock:
            speed = self._speeds.setdefault(tokens.bit_length(), _Speed())
            speed.tokens = speed.tokens * _KEEP + tokens
            speed.seconds = speed.seconds * _KEEP + seconds

    def rate(self, tokens: int) -> float | None:
        """Return the rate for *tokens* to compute, or the nearest measured number of them."""
        with self._lock:
            if not self._speeds:
                return None
            wanted = tokens.bit_length()
            speed = self._speeds[min(self._speeds, key=lambda bits: (abs(bits - wanted), bits))]
            return speed.tokens / speed.seconds


class PromptPart(NamedTuple):
    """The tokens of a prompt that a step computes: *tokens* of them behind the first *start*."""

    request: str
    start: int
    tokens: int


@dataclass(slots=True)
class _Prompt:
    end: int
    tokens: int = 0
    seconds: float = 0.0


class PromptMeter:
    """Measures the prompts of one engine by the seconds of its steps. For one thread."""

    def __init__(self) -> None:
        self._speed = ComputeSpeed()
        self._steps: OrderedDict[int, tuple[int, Sequence[PromptPart]]] = OrderedDict()
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()

    def expect(self, step: int, parts: Sequence[PromptPart], tokens: int) -> bool:
        """Note the prompts of a *step* that computes *tokens* in all. True if it is to be timed."""
        if sum(part.tokens for part in parts) < _LEAST:
            return False
        self._steps[step] = tokens, parts
        _limit(self._steps)
        return True

    def over(self, steps: Mapping[int, float]) -> None:
        """Take in the seconds that steps took. A prompt has its share of each step's."""
        for step, seconds in steps.items():
            tokens, parts = self._steps.pop(step, (1, ()))
            for request, start, count in parts:
                prompt = self._prompts.pop(request, None)
                if prompt is None or prompt.end != start:
                    prompt = _Prompt(start)
                prompt.end += count
                prompt.tokens += count
                prompt.seconds += seconds * count / tokens
                self._prompts[request] = prompt
                self._speed.observe(prompt.tokens, prompt.seconds)
        _limit(self._prompts)

    def rate(self, tokens: int) -> float | None:
        """Return the rate for *tokens* of a prompt, per second; None before it is measured."""
        return self._speed.rate(tokens)


def _limit(
    known: OrderedDict[int, tuple[int, Sequence[PromptPart]]] | OrderedDict[str, _Prompt],
) -> None:
    while len(known) > _MOST:
        known.popitem(last=False)


class Mark(Protocol):
    """A place in the work that is queued for the model."""

    def until(self, later: Any) -> float | None:
        """Return the seconds to a *later* mark; ``None`` while that is not reached."""
        ...


class _HostMark:
    """A mark where the model runs as it is called."""

    def __init__(self) -> None:
        self._when = time.monotonic()

    def until(self, later: _HostMark) -> float | None:
        return later._when - self._when


class StepTimer:
    """Times steps of one rank, and never waits for them. For the thread that runs them."""

    def __init__(self, mark: Callable[[], Mark] | None = None) -> None:
        """Use *mark*, which returns a mark behind all work queued so far; by default the clock."""
        self._mark = mark or _HostMark
        self._begun: Mark | None = None
        self._running: deque[tuple[int, Mark, Mark]] = deque()

    def begin(self) -> None:
        """Note that a step begins."""
        self._begun = self._mark() if len(self._running) < _MOST_RUNNING else None

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
