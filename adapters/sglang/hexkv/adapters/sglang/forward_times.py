"""How fast SGLang computes prompts, from the seconds that its forward passes take.

SGLang reports these at no extension point. So its model runner's method is wrapped, which knows
the tokens of each request, and marks on its stream are compared once they are reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

import torch

from hexkv.adapters.sglang.wrapping import Plain, wrap
from hexkv.kernels.transfer import marks
from hexkv.plugins.support.compute_speed import PromptMeter, PromptPart, StepTimer
from hexkv.ports import CacheLifecycle

log = logging.getLogger("hexkv.sglang")

_RUNNER = ("sglang.srt.model_executor.model_runner", "ModelRunner")


class ForwardTimes:
    """Measures the prompts of one process. Safe from any thread."""

    def __init__(self) -> None:
        self._meter = PromptMeter()
        self._timer: StepTimer | None = None
        self._stages = 1
        self._number = 0
        self._lock = Lock()

    def begin(self, runner: Any, batch: Any) -> int | None:
        """Note that a forward pass begins. Return its number if it is to be timed."""
        if batch.forward_mode.name not in ("EXTEND", "MIXED") or not batch.rids:
            return None
        if runner.is_draft_worker or _loads(runner):
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return None
        counts = batch.extend_seq_lens_cpu
        rows = zip(batch.rids, batch.extend_prefix_lens_cpu, counts, strict=False)
        # A request that generates has one token in a mixed batch.
        parts = [PromptPart(*row) for row in rows if row[2] > 1]
        with self._lock:
            self._take()
            self._number += 1
            if not self._meter.expect(self._number, parts, sum(counts)):
                return None
            if self._timer is None:
                self._timer = StepTimer(marks(torch.device(runner.device)))
                self._stages = int(getattr(runner, "pp_size", 1) or 1)
            self._timer.begin()
        return self._number

    def end(self, number: int) -> None:
        """Note that all of a forward pass is queued."""
        with self._lock:
            if self._timer is not None:
                self._timer.end(number)

    def rate(self, tokens: int) -> float | None:
        """Return the rate for *tokens* of a prompt, per second; None before it is measured."""
        with self._lock:
            self._take()
            return self._meter.rate(tokens)

    def informing(self, cache: CacheLifecycle) -> Callable[[int], None]:
        """Return a function that gives *cache* the rate for the tokens of its next lookup."""
        return lambda tokens: cache.computes(self.rate(tokens))

    def _take(self) -> None:
        if self._timer is not None:
            # Each stage of a pipeline computes its layers after those of the one before.
            took = self._timer.take()
            self._meter.over({number: each * self._stages for number, each in took.items()})


FORWARDS = ForwardTimes()
"""Of this process."""


def watch() -> None:
    """Time the forward passes of this process from now on, once the model runner is imported."""
    wrap(*_RUNNER, "forward", _timed)


def _timed(plain: Plain) -> Plain:
    @wraps(plain)
    def forward(runner: Any, forward_batch: Any, *args: object, **named: object) -> object:
        number = None
        try:
            number = FORWARDS.begin(runner, forward_batch)
        except Exception as error:  # noqa: BLE001 - of attributes that another release has not
            log.debug("a forward pass is not timed: %r", error)
        try:
            return plain(runner, forward_batch, *args, **named)
        finally:
            if number is not None:
                FORWARDS.end(number)

    return forward


def _loads(runner: Any) -> bool:
    """True if the forward pass waits for KV, layer by layer."""
    counter = getattr(runner.token_to_kv_pool, "layer_transfer_counter", None)
    return counter is not None and counter.consumer_index >= 0
