"""Data that vLLM carries from one side of the connector to the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from hexkv.adapters.vllm.messages import Step
from hexkv.adapters.vllm.metrics.events import BlockEvent


class PlannedStep(KVConnectorMetadata):  # type: ignore[misc]  # untyped here
    """A step's loads and saves, on their way to every worker."""

    def __init__(self, step: Step, lost: Step | None = None) -> None:
        """Take the plan, and *lost* loads: vLLM counts on them, but they are in no plan."""
        self.step = step
        self.lost = Step() if lost is None else lost


class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc]  # untyped here
    """The ranks' reports after a step, on their way to the scheduler."""

    def __init__(self, steps: Mapping[int, int], changes: Sequence[BlockEvent]) -> None:
        """Take steps whose loads are over, with the number of ranks, and changes of the tiers."""
        self.steps = steps
        self.changes = changes

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        if not isinstance(other, WorkerReport):
            return self
        steps = Counter(self.steps)
        steps.update(other.steps)
        return WorkerReport(dict(steps), [*self.changes, *other.changes])
