"""The connector's numbers as vLLM collects them: its log line and its ``/metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from hexkv.adapters.vllm.metrics import HELP, per_second

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class HexKVStats(KVConnectorStats):  # type: ignore[misc]  # untyped here
    """Sums since the last report: ``data`` is one number for each name in ``HELP``."""

    def reset(self) -> None:
        self.data: dict[str, float] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        return per_second(self.data)

    def is_empty(self) -> bool:
        return not self.data


class HexKVProm(KVConnectorPromMetrics):  # type: ignore[misc]  # untyped here
    """Counters ``vllm:hexkv_*``, one for each name in ``HELP``."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: dict[str, dict[int, Any]] = {}
        for name, text in HELP.items():
            counter = self._counter_cls(
                name=f"vllm:hexkv_{name}", documentation=text, labelnames=labelnames
            )
            self._counters[name] = {
                engine: counter.labels(*values) for engine, values in per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            counter = self._counters.get(name, {}).get(engine_idx)
            if counter is not None:
                counter.inc(amount)
