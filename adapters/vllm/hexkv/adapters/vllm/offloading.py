"""A second, thin adapter: hexkv behind vLLM's own OffloadingConnector, hybrid models included.

vLLM names blocks, decides which to keep and knows which layers a block is of; hexkv keeps
them. ``kv_connector_extra_config`` has ``spec_name`` ``HexKVOffloadingSpec``,
``spec_module_path`` ``hexkv.adapters.vllm.offloading`` and, under ``hexkv``, the same
configuration as the connector's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import vllm
from vllm.config import get_current_vllm_config
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TransferResult,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from hexkv.adapters.vllm.assembly import tiers_of, watched_weights
from hexkv.adapters.vllm.configuration.configuration import BLOCK_TOKENS, configure_offloading
from hexkv.adapters.vllm.configuration.identity import Rank, counts_inputs, namespace_of
from hexkv.adapters.vllm.configuration.inspection import instructions, refuse
from hexkv.adapters.vllm.configuration.shards import own_partition
from hexkv.adapters.vllm.configuration.weights import Weights
from hexkv.adapters.vllm.guard import guarded
from hexkv.adapters.vllm.lookup.channel import (
    ChannelClient,
    ChannelServer,
    meeting_place,
    socket_path,
)
from hexkv.adapters.vllm.scheduler.promises import Promises
from hexkv.adapters.vllm.scheduler.resetting import reset
from hexkv.adapters.vllm.worker.held import Copying, HeldBlocks
from hexkv.kernels.blocks import opaque_layout
from hexkv.plugins.composition.compose import build
from hexkv.plugins.composition.identity import identify
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.observing.logs import share
from hexkv.plugins.support.causes import causing
from hexkv.ports import ConfigError, InvalidRequest, Namespace

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("vllm.hexkv")

_START_SECONDS = 10.0


class Tickets(LoadStoreSpec):  # type: ignore[misc]  # untyped here
    """Names of blocks for the workers.

    Args:
        keys: the names.
        load: the ticket of a load.
        tickets: those of its blocks.
        generation: how often vLLM had emptied the cache when these were to be stored.
    """

    def __init__(
        self,
        keys: Collection[OffloadKey],
        *,
        load: int = 0,
        tickets: Sequence[int] = (),
        generation: int = 0,
    ) -> None:
        self.keys = list(keys)
        self.load = load
        self.tickets = list(tickets)
        self.generation = generation


class HexKVManager(OffloadingManager):  # type: ignore[misc]  # untyped here
    """Asks the ranks for blocks, for vLLM's scheduler."""

    def __init__(
        self,
        ranks: Sequence[ChannelClient],
        patience: float,
        weights: Weights,
        clears: Sequence[str] = (),
    ) -> None:
        """Ask *ranks*, each for *patience* seconds, while the KV is named after *weights*.

        A reset of vLLM's caches *clears* tiers.
        """
        self._ranks = ranks
        self._weights = weights
        self._clears = clears
        self._promises = Promises(ranks, patience)
        self._generation = 0
        self._current = True
        """True if every rank knows of the last reset."""

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        del req_context
        return RequestOffloadingContext()

    @guarded(LookupResult.MISS)
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if not (self._current and self._weights.intact):
            return LookupResult.MISS
        held = self._promises.held(key, get_offload_group_idx(key), req_context.req_id)
        if held is None:
            return LookupResult.RETRY
        return LookupResult.HIT if held else LookupResult.MISS

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        load, tickets = self._load(keys, req_context.req_id)
        return Tickets(keys, load=load, tickets=tickets)

    # No block ever has the ticket 0: a block whose question cannot be sent is not loaded.
    @guarded(lambda keys, _: (0, [0] * len(keys)))
    def _load(self, keys: Collection[OffloadKey], request: str) -> tuple[int, list[int]]:
        return self._promises.load([(key, get_offload_group_idx(key)) for key in keys], request)

    @guarded(None)
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._promises.loaded(keys, req_context.req_id)

    @guarded(None)
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        del req_context
        if not self._weights.intact:
            return PrepareStoreOutput([], Tickets([]), [])
        self._promises.stored(keys)
        names = Tickets(keys, generation=self._generation)
        return PrepareStoreOutput(list(keys), names, [])

    @guarded(None)
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        del context
        self._weights.computed()
        self._promises.step()

    @guarded(None)
    def on_request_finished(self, req_context: ReqContext) -> None:
        self._promises.left(req_context.req_id)

    @guarded(None)
    def reset_cache(self) -> None:
        self._generation += 1
        self._current = False
        self._promises.forget()
        self._current = reset(self._ranks, self._clears, generation=self._generation)

    @guarded(None)
    def shutdown(self) -> None:
        self._promises.close()


@dataclass
class _Load:
    """A load under way: until all its blocks are held and copied, or its request is given up."""

    job: int
    names: Tickets
    blocks: list[int]
    began: float
    copying: Copying | None = None
    failed: bool = False


class HexKVWorker(OffloadingWorker):  # type: ignore[misc]  # untyped here
    """Copies blocks between vLLM's memory and the pool, while it is called."""

    def __init__(self, held: HeldBlocks, listener: ChannelServer) -> None:
        self._held = held
        self._listener = listener
        self._loads: list[_Load] = []
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Tickets) -> bool:
        began = time.monotonic()
        self._done.append(TransferResult(job_id, True, self._store(src_spec, dst_spec)))
        self._done[-1].transfer_time = time.monotonic() - began
        return True

    def submit_load(self, job_id: int, src_spec: Tickets, dst_spec: GPULoadStoreSpec) -> bool:
        blocks = dst_spec.block_ids.tolist()
        self._loads.append(_Load(job_id, src_spec, blocks, time.monotonic()))
        self._go_on()
        return True

    def get_finished(self) -> list[TransferResult]:
        self._go_on()
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Stores are over once they are submitted; vLLM's blocks stay with a load that waits."""

    @guarded(None)
    def shutdown(self) -> None:
        try:
            self._listener.close()
        finally:
            self._held.close()

    def _go_on(self) -> None:
        """Advance the loads. A failed one is not reported as over: its KV is not right."""
        for load in list(self._loads):
            size = self._load(load)
            if size is None:
                continue
            self._loads.remove(load)
            self._done.append(TransferResult(load.job, True, size, time.monotonic() - load.began))

    @guarded(None)
    def _load(self, load: _Load) -> int | None:
        """Bytes of a load that is over; ``None``: it is not."""
        names = load.names
        given_up = self._held.gave_up(names.load)
        if load.copying is None:
            if given_up:
                return 0
            if load.failed or not self._held.ready(names.tickets):
                return None
            load.failed = True
            load.copying = self._held.load(list(zip(names.tickets, load.blocks, strict=True)))
        # While a block is being written to it must not become another request's.
        if not load.copying.done:
            return None
        if load.copying.whole:
            return load.copying.size
        return 0 if given_up else None

    @guarded(0)
    def _store(self, source: GPULoadStoreSpec, names: Tickets) -> int:
        blocks = source.block_ids.tolist()
        if len(blocks) != len(names.keys):  # before anything is stored under another's name
            raise InvalidRequest(f"{len(names.keys)} names for {len(blocks)} blocks")
        groups = [get_offload_group_idx(key) for key in names.keys]
        wanted = zip(map(bytes, names.keys), groups, blocks, strict=True)
        return self._held.store(wanted, names.generation)


class HexKVOffloadingSpec(OffloadingSpec):  # type: ignore[misc]  # untyped here
    """Builds both sides of vLLM's OffloadingConnector."""

    @causing()
    def __init__(self, config: OffloadingConfig) -> None:
        """Read the configuration.

        Raises:
            ConfigError: it is none of hexkv's, or vLLM is to keep several blocks as one.
        """
        super().__init__(config)
        share("vllm")
        if self.blocks_per_chunk != 1:
            raise ConfigError("hexkv keeps single blocks here: leave out block_size")
        self._configured = configure_offloading(
            config.extra_config, discover(), ranks=config.parallel.world_size
        )

    def get_manager(self) -> OffloadingManager:
        place = self._place(make=False)
        ranks = [
            ChannelClient(socket_path(place, n)) for n in range(self.config.parallel.world_size)
        ]
        for number, rank in enumerate(ranks):
            if not rank.reachable(_START_SECONDS):
                log.error("the worker of rank %d does not listen in %s: no hits", number, place)
        own = self._configured.connector
        weights = watched_weights(str(self.config.engine_id), ranks)
        return HexKVManager(ranks, own.lookup_seconds, weights, own.reset_clears)

    @causing()
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        config = get_current_vllm_config()  # which this one is a part of
        refuse(config)
        if getattr(config, "lora_config", None) is not None:
            raise ConfigError(
                "LoRA adapters are not cached behind vLLM's offloading, which names blocks by an"
                " adapter's name, whatever it holds: leave out enable_lora, or use the connector"
            )
        if counts_inputs(config):  # and puts the numbers into its names of blocks
            raise ConfigError(
                "vLLM numbers images: leave out mm_processor_cache_gb 0, or switch on its"
                " prefix caching"
            )
        groups = {}
        for place, refs in enumerate(kv_caches.group_data_refs):
            pages = [
                kv_caches.tensors[ref.tensor_idx].tensor[:, : ref.page_size_bytes].view(torch.uint8)
                for ref in refs
            ]
            # A release whose groups have no numbers counts them.
            number = getattr(self.config.groups[place], "group_id", place)
            groups[number] = self._namespace(config, place, number, pages), pages
        largest = max((space for space, _ in groups.values()), key=lambda n: n.layout.token_bytes)
        engine = build(self._configured.engine, largest, rank=self.config.parallel.rank)
        settings = self._configured.engine.settings
        # The other half is for blocks to store, and for reads.
        held = HeldBlocks(
            engine,
            groups,
            settings.pool.bytes // 2,
            settings.deadlines,
            weights=largest.revision,
        )
        parallel = self.config.parallel
        path = socket_path(self._place(make=True), parallel.rank)
        log.info(
            "hexkv %s behind vLLM's offloading, rank %d of %d: %s; pool of %d bytes (%s);"
            " %d group(s) of KV, each block by itself",
            metadata.version("hexkv-vllm"),
            parallel.rank,
            parallel.world_size,
            tiers_of(engine.health().tiers),
            settings.pool.bytes,
            self._configured.engine.origin(("pool", "bytes")),
            len(groups),
        )
        return HexKVWorker(held, ChannelServer(path, held))

    def _place(self, *, make: bool) -> Path:
        directory = self._configured.connector.socket_dir
        return meeting_place(directory, f"offloading {self.config.engine_id}", make=make)

    def _namespace(
        self, config: VllmConfig, place: int, number: int, pages: Sequence[torch.Tensor]
    ) -> Namespace:
        layout = opaque_layout(BLOCK_TOKENS, [page.shape[1] for page in pages])
        device = pages[0].device.type
        inside = {
            "block": f"{self.config.groups[place].tokens_per_block} tokens of group {number}",
            "cache": f"{self.config.model.dtype} {getattr(self.config, 'kv_cache_layout', '')}",
            "compute": str(config.model_config.dtype),
            "device": f"{device} {instructions(device)}".strip(),
            "engine": f"vllm offloading {'.'.join(vllm.__version__.split('.')[:2])}",
        }
        rank = Rank.of(config)
        inside |= own_partition(config, rank)
        host = namespace_of(config, layout, rank, self._configured.engine, inside=inside)
        return identify(host, self._configured.engine)
