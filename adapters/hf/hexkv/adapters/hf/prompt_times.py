"""How fast a model computes prompts, from the calls that fill this adapter's caches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock

import torch

from hexkv.kernels.transfer import marks
from hexkv.plugins.support.compute_speed import ComputeSpeed, StepTimer

_LEAST = 64
"""Tokens of a call that is measured."""

_MOST = 64
"""Calls under way that are measured; the oldest are left out."""


class CallTimer:
    """Times the first call of a model with one cache. For the thread that makes it."""

    def __init__(self, device: torch.device, layers: int) -> None:
        self._timer = StepTimer(marks(device))
        self.last = layers - 1
        """The number of the last layer."""

    def begin(self, tokens: int) -> None:
        """Note that the KV of the first layer is computed, of *tokens* tokens."""
        if tokens >= _LEAST and not torch.compiler.is_compiling():
            self._timer.begin()

    def end(self, tokens: int) -> None:
        """Note that the KV of the last layer is computed."""
        if not torch.compiler.is_compiling():
            self._timer.end(tokens)

    def take(self) -> Sequence[tuple[int, float]]:
        """Return tokens and seconds of the call, once, after its end."""
        # The time from the first layer's KV to the last layer's is that of all layers but one.
        share = (self.last + 1) / self.last
        return [(tokens, share * seconds) for tokens, seconds in self._timer.take().items()]


class PromptTimes:
    """Measures the prompts of one model. Safe from any thread."""

    def __init__(self) -> None:
        self._speed = ComputeSpeed()
        self._under_way: deque[CallTimer] = deque(maxlen=_MOST)
        self._lock = Lock()

    def timer(self, devices: Sequence[torch.device]) -> CallTimer | None:
        """Return a timer for a model with layers on *devices*; None if it cannot be timed."""
        [first, *others] = devices
        if not others or set(others) != {first} or first.type not in ("cpu", "cuda"):
            return None
        made = CallTimer(first, len(devices))
        with self._lock:
            self._under_way.append(made)
        return made

    def rate(self, tokens: int) -> float | None:
        """Return the rate for *tokens* of a prompt, per second; None before it is measured."""
        with self._lock:
            for timer in [*self._under_way]:
                for call in timer.take():
                    self._speed.observe(*call)
                    self._under_way.remove(timer)
        return self._speed.rate(tokens)
