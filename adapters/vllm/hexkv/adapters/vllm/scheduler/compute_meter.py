"""How fast vLLM computes prompts, from the seconds that its steps take in the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hexkv.adapters.vllm.messages import Step
from hexkv.adapters.vllm.scheduler.requests import Scheduled, Tracked
from hexkv.plugins.support.compute_speed import PromptMeter, PromptPart


class ComputeMeter(PromptMeter):
    """Measures one engine's prompts. For one thread."""

    def plan(
        self, step: Step, scheduled: Sequence[Scheduled], requests: Mapping[str, Tracked]
    ) -> None:
        """Have *step* timed, if it computes prompts and loads nothing within."""
        if any(not load.later for load in step.loads):
            return
        parts = []
        for part in scheduled:
            tracked = requests.get(part.request)
            if tracked is not None and part.computed < tracked.prompt:
                parts.append(PromptPart(part.request, part.computed, part.scheduled))
        tokens = sum(part.scheduled for part in scheduled)
        step.timed = self.expect(step.number, parts, tokens)
