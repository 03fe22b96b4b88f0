"""The part of vLLM's KV connector that belongs to the class: vLLM calls it before there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from hexkv.adapters.vllm.configuration.configuration import verify
from hexkv.adapters.vllm.configuration.inspection import refuse
from hexkv.adapters.vllm.metrics.stats import HexKVProm, HexKVStats
from hexkv.plugins.discovery.discovery import discover

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
    )


class ConnectorClass(KVConnectorBase_V1):  # type: ignore[misc]  # untyped here
    """The answers of hexkv's connector about itself."""

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """True if loads or saves are layerwise. Called with CUDA graphs only, before weights load.

        Raises:
            ConfigError: nothing can be built from the configuration.
        """
        verify(extra_config, discover())
        return "layerwise" in (extra_config.get("loading"), extra_config.get("storing"))

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """No layout in particular. Called before memory is profiled and the model compiled.

        Raises:
            ConfigError: nothing can be built from the configuration.
            LayoutMismatch: the model's KV cannot be cached.
        """
        verify(vllm_config.kv_transfer_config.kv_connector_extra_config, discover())
        refuse(vllm_config)
        return None

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # KV that is not stored is computed again

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        return HexKVStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        return HexKVProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: KVTransferConfig) -> bool:
        """Yes: hexkv follows the KV cache's memory when it goes and comes back."""
        del kv_transfer_config
        return True
