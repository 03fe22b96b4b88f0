"""The connector's numbers as vLLM collects them: its log line and its ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from hexkv.adapters.vllm.metrics.metrics import (
    COUNTERS,
    GAUGES,
    HELP,
    help_of,
    labels_of,
    per_second,
    values_of,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class HexKVStats(KVConnectorStats):  # type: ignore[misc]  # untyped here
    """The activity of the ranks since the last report, and the numbers of their engines.

    ``data`` has a number for each name in ``HELP``, which are added up, and for each name in
    ``COUNTERS`` and ``GAUGES`` the newest values by labels, the rank among them.
    """

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, amount in other.data.items():
            if isinstance(amount, Mapping):
                self.data[name] = {**self.data.get(name, {}), **amount}
            else:
                self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        return per_second({name: self.data[name] for name in HELP if name in self.data})

    def is_empty(self) -> bool:
        return not self.data


class HexKVProm(KVConnectorPromMetrics):  # type: ignore[misc]  # untyped here
    """``vllm:hexkv_*``: a counter for each name in ``HELP``, and engines' numbers by labels."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._engines = per_engine_labelvalues
        self._counters: dict[str, dict[int, Any]] = {}
        for name, text in HELP.items():
            counter = self._counter_cls(
                name=f"vllm:hexkv_{name}", documentation=text, labelnames=labelnames
            )
            self._counters[name] = {
                engine: counter.labels(*values) for engine, values in per_engine_labelvalues.items()
            }
        self._families: dict[str, Any] = {}
        for name in COUNTERS:
            self._families[name] = self._counter_cls(
                name=f"vllm:hexkv_{name}",
                documentation=help_of(name),
                labelnames=[*labelnames, *labels_of(name)],
            )
        for name in GAUGES:
            self._families[name] = self._gauge_cls(
                name=f"vllm:hexkv_{name}",
                documentation=help_of(name),
                multiprocess_mode="mostrecent",
                labelnames=[*labelnames, *labels_of(name)],
            )
        self._shown: dict[tuple[str, int, str], float] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            if isinstance(amount, Mapping):
                self._show(name, amount, engine_idx)
                continue
            counter = self._counters.get(name, {}).get(engine_idx)
            if counter is not None:
                counter.inc(amount)

    def _show(self, name: str, newest: Mapping[str, float], engine: int) -> None:
        """Publish a number of an engine: a counter by its increase since the last time."""
        family = self._families.get(name)
        if family is None or engine not in self._engines:
            return
        for key, value in newest.items():
            values = values_of(key)
            if len(values) != len(labels_of(name)):
                continue
            series = family.labels(*self._engines[engine], *values)
            if name in GAUGES:
                series.set(value)
                continue
            before = self._shown.get((name, engine, key), 0)
            # Less than before: a worker that was started anew counts from the beginning.
            series.inc(value - before if value >= before else value)
            self._shown[name, engine, key] = value
