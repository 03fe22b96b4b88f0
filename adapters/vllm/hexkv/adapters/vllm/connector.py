"""vLLM's KV connector: one class, made twice, in the scheduler's process and in each worker.

Each worker has a cache engine of its own; the scheduler asks them through sockets. vLLM's
base class documents the caller, the process and the time of every method. An error at the
start stops vLLM with one line that gives the reason; afterwards no exception of this module
reaches vLLM: the cache is left out, and vLLM computes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from hexkv.adapters.vllm import assembly
from hexkv.adapters.vllm.assembly import WorkerContext, adapters_of
from hexkv.adapters.vllm.carried import PlannedStep, WorkerReport
from hexkv.adapters.vllm.configuration.identity import counts_inputs, scope_of
from hexkv.adapters.vllm.configuration.inspection import describe
from hexkv.adapters.vllm.connector_class import ConnectorClass
from hexkv.adapters.vllm.guard import guarded
from hexkv.adapters.vllm.messages import Load, Scope, Step
from hexkv.adapters.vllm.metrics.events import BlockEvent
from hexkv.adapters.vllm.metrics.stats import HexKVStats
from hexkv.adapters.vllm.scheduler.reading import (
    RequestParams,
    blocks_of,
    by_source,
    node_name,
    published,
    scheduled,
)
from hexkv.adapters.vllm.scheduler.requests import Allowed
from hexkv.adapters.vllm.scheduler.scheduler_connector import SchedulerConnector
from hexkv.plugins.observing.logs import share
from hexkv.plugins.support.causes import causing

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


_SOON = 0.05
"""Seconds that vLLM may wait for the blocks of a request that has ended, before it preempts one."""


class HexKVConnector(ConnectorClass):
    """hexkv under vLLM."""

    @causing()
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """Prepare the side of *role*.

        Raises:
            ConfigError: the configuration does not describe something that can be built.
            LayoutMismatch: the model's KV cannot be cached.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        share("vllm")
        self._config = vllm_config
        self._memory = describe(vllm_config, kv_cache_config)
        self._configured = assembly.read(vllm_config, self._memory)
        node = node_name(self._configured.engine.settings.node or "")
        self._params = RequestParams(self._kv_transfer_config, self._configured.connector, node)
        self._scheduler: SchedulerConnector | None = None
        self._worker: WorkerContext | None = None
        self._changes: list[BlockEvent] = []
        self._promised: list[Load] = []
        self._ended: list[str] = []
        """Requests whose blocks vLLM keeps, which the workers do not know yet."""

        self._ended_here: list[str] = []
        """The same, in a worker, which knows of them."""

        self._ending: dict[str, float] = {}
        """When each request ended whose blocks vLLM keeps."""

        self._later: dict[str, bool] = {}
        """By request, True if vLLM knows that its loads happen between steps."""

        self._counted = counts_inputs(vllm_config)
        # Before any request: adapters that are loaded earlier are not known.
        self._adapters = None if role is KVConnectorRole.SCHEDULER else adapters_of(vllm_config)
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = assembly.scheduler_connector(
                vllm_config, self._memory, self._configured
            )

    # In the workers.

    @causing()
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Build this rank's engine.

        Raises:
            HexKVError: it cannot be built.
        """
        caches = {name: kv_caches[name] for name in self._memory.layers}
        self._worker = assembly.worker_connector(
            self._config,
            self._memory,
            self._configured,
            caches,
            vllm.__version__,
            self._adapters,
        )

    # Sleep mode. vLLM calls these from 0.33 on; before, it only sleeps where no load is under way.

    def unregister_kv_caches(self) -> None:
        """Stop using the KV cache's memory, which is about to be freed. Twice is allowed.

        Raises:
            EngineBusy: a copy from it or to it does not end; vLLM must keep the memory, and does.
        """
        if self._worker is not None:
            self._worker.leave()

    @guarded(None)
    def restore_kv_caches(self) -> None:
        """Use the KV cache's memory again, wherever its tensors are by now. Twice is allowed."""
        if self._worker is not None:
            self._worker.go_on()

    def _abandon(self) -> None:
        if self._worker is not None and self.has_connector_metadata():
            self._worker.half.failed(self._planned())
            self._worker.half.failed(self._get_connector_metadata().lost)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if isinstance(connector_metadata, PlannedStep):
            self._ended_here.extend(connector_metadata.ended)
        self._prepare(connector_metadata)

    def _void_saves(self) -> None:
        if self._worker is not None:
            self._worker.half.void_saves()

    @guarded(None, then=_void_saves)
    def _prepare(self, planned: KVConnectorMetadata) -> None:
        if self._worker is not None:
            self._worker.half.prepare(planned.step if isinstance(planned, PlannedStep) else None)

    @guarded(None, then=_abandon)
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        del forward_context, kwargs
        if self._worker is not None and self.has_connector_metadata():
            self._worker.half.start(self._planned())
            self._worker.half.failed(self._get_connector_metadata().lost)

    @guarded(None)
    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._worker is not None:
            self._worker.half.wait_for_layer(layer_name)

    @guarded(None)
    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        del kv_layer, attn_metadata, kwargs
        if self._worker is not None and self.has_connector_metadata():
            planned = self._get_connector_metadata()
            # Lost loads are reported at the end, and KV computed from them may not be stored.
            if isinstance(planned, PlannedStep) and not planned.lost.loads:
                self._worker.half.computed_layer(planned.step, layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None and self.has_connector_metadata():
            self._end_loads()
            self._save()

    @guarded(None, then=_abandon)
    def _end_loads(self) -> None:
        if self._worker is not None:
            self._worker.half.end_loads(self._planned())

    @guarded(None)
    def _save(self) -> None:
        if self._worker is not None:
            self._worker.half.save(self._planned())

    @guarded((None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        del finished_req_ids
        if self._worker is None:
            return None, None
        saved, arrived = self._saved(), self._arrived()
        # A request whose load is never reported as over waits for ever.
        return saved or None, (self._worker.half.lost() if arrived is None else arrived) or None

    @guarded(frozenset())
    def _saved(self) -> set[str]:
        if self._worker is None:
            return set()
        free = self._worker.half.saved(self._ended_here)
        self._ended_here.clear()
        return free

    @guarded(None)
    def _arrived(self) -> set[str] | None:
        return None if self._worker is None else self._worker.half.arrived()

    @guarded(frozenset())
    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._worker is None else self._worker.half.bad_blocks()

    @guarded(None)
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        if self._worker is None:
            return None
        half = self._worker.half
        steps, changes = half.finished_steps(), half.events()
        saved, seconds = half.saved_steps(), half.timer.take()
        if not (steps or changes or saved or seconds):
            return None
        return WorkerReport(steps, changes, saved, seconds)

    @guarded(None)
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        counts = {} if self._worker is None else self._worker.half.stats()
        return HexKVStats(data=counts) if counts else None

    # In the scheduler.

    @guarded(None)
    def on_new_request(self, request: Request) -> None:
        half = self._scheduler
        if half is None or half.knows(request.request_id):
            return
        scope = scope_of(request, counted=self._counted)
        may = self._params.allowed(request.kv_transfer_params)
        if scope is None:
            scope, may = Scope(), Allowed()
        if getattr(request, "skip_reading_prefix_cache", False):
            may = may._replace(reads=False)
        half.arrived(request, scope, may)

    @guarded((0, False))
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        self.on_new_request(request)
        found, later = self._scheduler.matched(request.request_id, num_computed_tokens)
        self._later[request.request_id] = later
        return found, later

    @guarded(None)
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        (block_ids,) = blocks.get_block_ids()
        if num_external_tokens:
            # From now on vLLM counts on these blocks, whatever happens in here.
            end = len(block_ids) * self._memory.block
            later = self._later.get(request.request_id, False)
            lost = Load(request.request_id, Scope(), b"", 0, end, tuple(block_ids), later)
            self._promised.append(lost)
        if self._scheduler is not None:
            self._scheduler.allocated(request.request_id, block_ids, num_external_tokens)

    @guarded({})
    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[Any, int]:
        if self._scheduler is None:
            return {}
        tokens = self._scheduler.sources(request.request_id, num_external_tokens)
        return by_source(tokens, num_external_tokens, self._configured.engine.settings.tiers)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        step = self._plan(scheduler_output)
        planned = {load.request for load in step.loads}
        lost = [load for load in self._promised if load.request not in planned]
        self._promised.clear()
        for load in lost:
            self._give_up(load.request)
        ended, self._ended = self._ended, []
        return PlannedStep(step, Step(loads=lost), ended)

    @guarded(None)
    def _give_up(self, request: str) -> None:
        if self._scheduler is not None:
            self._scheduler.give_up(request)

    @guarded(lambda _: Step(replaced=True))
    def _plan(self, scheduler_output: SchedulerOutput) -> Step:
        if self._scheduler is None:
            return Step()
        return self._scheduler.plan(scheduled(scheduler_output), blocks_of(scheduler_output))

    @guarded(None)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._scheduler is not None:
            happened = connector_output.kv_connector_worker_meta
            steps: Mapping[int, int] = {}
            for name in connector_output.finished_sending or ():
                self._ending.pop(name, None)
            if isinstance(happened, WorkerReport):
                steps = happened.steps
                self._changes.extend(happened.changes)
                self._scheduler.reading.over(happened.saved)
                self._scheduler.meter.over(happened.seconds)
            self._scheduler.done(connector_output.invalid_block_ids, steps)

    @guarded(())
    def take_events(self) -> Iterable[KVCacheEvent]:
        changes, self._changes = self._changes, []
        return published(changes) if changes else ()

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        del block_ids
        keeps, answer = self._keeps_blocks(request.request_id), self._finish(request)
        if keeps:  # vLLM and the workers learn of it together
            self._ended.append(request.request_id)
            self._ending[request.request_id] = time.monotonic()
        return keeps, answer

    @guarded(True)
    def _keeps_blocks(self, request: str) -> bool:
        return self._scheduler is not None and self._scheduler.reading.keeps(request)

    @guarded(None)
    def _finish(self, request: Request) -> dict[str, Any] | None:
        self._later.pop(request.request_id, None)
        if self._scheduler is None:
            return None
        kept, name = self._scheduler.handed_over(request.request_id)
        self._scheduler.left(request.request_id)
        if kept is None or not request.output_token_ids:
            return None
        own_id, count = self._kv_transfer_config.engine_id, request.num_prompt_tokens
        return self._params.answer(own_id, request.request_id, count, kept, name)

    def has_pending_push_work(self) -> bool:
        """True while the blocks of ended requests wait for a step to be freed in."""
        return bool(self._ending)

    def has_pending_block_frees(self) -> bool:
        """True while waiting soon frees blocks, so that no request has to be preempted."""
        soon = time.monotonic() - _SOON
        return any(ended > soon for ended in self._ending.values())

    @guarded(None)
    def reset_cache(self) -> bool | None:
        # vLLM calls this before it sleeps or pauses, too, and stays paused where it fails.
        if self._scheduler is not None:
            self._scheduler.reset()
        return None

    # In both.

    @guarded(None)
    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
            self._scheduler = None
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _planned(self) -> Step:
        planned = self._get_connector_metadata()
        return planned.step if isinstance(planned, PlannedStep) else Step()
