"""Data that vLLM carries from one side of the connector to the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from hexkv.adapters.vllm.messages import Step
from hexkv.adapters.vllm.metrics.events import BlockEvent


class PlannedStep(KVConnectorMetadata):  # type: ignore[misc]  # untyped here
    """A step's loads and saves, on their way to every worker."""

    def __init__(self, step: Step, lost: Step | None = None, ended: Sequence[str] = ()) -> None:
        """Take the plan, and *lost* loads: vLLM counts on them, but they are in no plan.

        vLLM keeps the blocks of the requests that *ended* until a worker names them.
        """
        self.step = step
        self.ended = ended
        self.lost = Step() if lost is None else lost


class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc]  # untyped here
    """The ranks' reports after a step, on their way to the scheduler."""

    def __init__(
        self,
        steps: Mapping[int, int],
        changes: Sequence[BlockEvent],
        saved: Mapping[int, int] = MappingProxyType({}),
        seconds: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Take steps whose loads, or saves, are over, changes of the tiers, and steps' *seconds*.

        With the number of a step whose loads or saves are over stands the number of ranks.
        """
        self.steps = dict(steps)
        self.changes = changes
        self.saved = dict(saved)
        self.seconds = dict(seconds)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        if not isinstance(other, WorkerReport):
            return self
        steps, saved = Counter(self.steps), Counter(self.saved)
        steps.update(other.steps)
        saved.update(other.saved)
        slower = {n: max(s, self.seconds.get(n, 0.0)) for n, s in other.seconds.items()}
        seconds = {**self.seconds, **slower}
        return WorkerReport(steps, [*self.changes, *other.changes], saved, seconds)
