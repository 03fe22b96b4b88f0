"""vLLM's own scheduler and OffloadingConnector, with hexkv behind it, around the toy's model."""

import os

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
)

from engines.vllm.vllm_toy import Toy
from hexkv.adapters.vllm.connector import KVConnectorRole


class Offloaded(Toy):
    """One engine of vLLM with one worker. Closed by :meth:`close`."""

    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}  # noqa: RUF012

    def __init__(self, model, hexkv, **settings):
        extra = {
            "spec_name": "HexKVOffloadingSpec",
            "spec_module_path": "hexkv.adapters.vllm.offloading",
            "hexkv": hexkv,
        }
        super().__init__(model, extra, **settings)

    def _work(self, config, kv):
        pages = [c.view(len(c), -1).view(torch.int8) for c in self.caches.values()]
        size = pages[0].shape[1]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(page, size) for page in pages],
            [[CanonicalKVCacheRef(place, size) for place in range(len(pages))]],
        )
        with set_current_vllm_config(config):
            worker = OffloadingConnector(config, KVConnectorRole.WORKER, kv)
            # Tensors of one kind, whatever the release makes of a model's.
            worker.connector_worker._init_worker(caches)
        return worker

    def settle(self, seconds):
        pass

    @property
    def held(self):
        return self.worker.connector_worker.worker._held

    @property
    def engine(self):
        return self.held._engine

    @property
    def manager(self):
        return self.scheduler.connector.connector_scheduler.manager

    @property
    def busy(self):
        """Whether loads or stores are under way."""
        return self.scheduler.connector.has_pending_push_work()

    def _rest(self):
        self.step()
        os.sched_yield()  # to the threads that answer
