"""How fast a host computes prompts, by the tokens that it computes, as it measures its steps.

A few tokens behind a long prefix take as long as many: so they are no measure of a whole prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

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
