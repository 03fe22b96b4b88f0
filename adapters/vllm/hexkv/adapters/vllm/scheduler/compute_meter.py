"""How fast vLLM computes prompts, from the seconds that its steps take in the workers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hexkv.adapters.vllm.messages import Step
from hexkv.adapters.vllm.scheduler.requests import Scheduled, Tracked
from hexkv.plugins.support.compute_speed import ComputeSpeed

_LEAST = 64
"""Tokens of prompts in a step that is timed. Steps that generate show nothing about prompts."""

_MOST = 4096
"""Steps, or prompts, that are remembered: the report of a step may be lost."""


class _Part(NamedTuple):
    """A prompt's share of a step."""

    request: str
    tokens: int
    last: bool


@dataclass(slots=True)
class _Prompt:
    tokens: int = 0
    seconds: float = 0.0


class ComputeMeter:
    """Measures one engine's prompts. For one thread."""

    def __init__(self) -> None:
        self._speed = ComputeSpeed()
        self._steps: OrderedDict[int, tuple[int, list[_Part]]] = OrderedDict()
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()

    def plan(
        self, step: Step, scheduled: Sequence[Scheduled], requests: Mapping[str, Tracked]
    ) -> None:
        """Have *step* timed, if it computes prompts and loads nothing within."""
        parts = []
        for part in scheduled:
            tracked = requests.get(part.request)
            if tracked is not None and part.computed < tracked.prompt:
                last = part.computed + part.scheduled >= tracked.prompt
                parts.append(_Part(part.request, part.scheduled, last))
        within = any(not load.later for load in step.loads)
        if within or sum(part.tokens for part in parts) < _LEAST:
            return
        step.timed = True
        self._steps[step.number] = sum(part.scheduled for part in scheduled), parts
        _limit(self._steps)

    def over(self, steps: Mapping[int, float]) -> None:
        """Take in the seconds that steps took."""
        for number, seconds in steps.items():
            tokens, parts = self._steps.pop(number, (1, []))
            for part in parts:
                prompt = self._prompts.setdefault(part.request, _Prompt())
                prompt.tokens += part.tokens
                prompt.seconds += seconds * part.tokens / tokens
                if part.last:
                    self._speed.observe(prompt.tokens, prompt.seconds)
                    del self._prompts[part.request]
        _limit(self._prompts)

    def rate(self, tokens: int) -> float:
        """Return the rate for *tokens* of a prompt, per second; 0 before it is measured."""
        return self._speed.rate(tokens) or 0.0


def _limit(known: OrderedDict[int, tuple[int, list[_Part]]] | OrderedDict[str, _Prompt]) -> None:
    while len(known) > _MOST:
        known.popitem(last=False)
