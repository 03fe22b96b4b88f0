"""A second, thin adapter: hexkv behind vLLM's own OffloadingConnector, hybrid models included.

vLLM names blocks, decides which to keep and knows which layers a block is of; hexkv keeps
them. ``kv_connector_extra_config`` has ``spec_name`` ``HexKVOffloadingSpec``,
``spec_module_path`` ``hexkv.adapters.vllm.offloading`` and, under ``hexkv``, the same
configuration as the connector's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path

import torch
import vllm
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
    TransferResult,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from hexkv.adapters.vllm.channel import Caller, Listener, meeting_place, socket_path
from hexkv.adapters.vllm.configuration import Configuration, configure
from hexkv.adapters.vllm.guard import guarded
from hexkv.adapters.vllm.staging import WORDS, Staging
from hexkv.kernels.blocks import opaque_layout
from hexkv.plugins.compose import build
from hexkv.plugins.discovery import discover
from hexkv.plugins.weights import digest_of
from hexkv.ports import ConfigError, Namespace, ParallelSlice

log = logging.getLogger("vllm.hexkv")

_START_SECONDS = 10.0
_CLEAR_SECONDS = 30.0


class Tickets(LoadStoreSpec):  # type: ignore[misc]  # untyped here
    """Names of blocks and, of those that are to be loaded, their tickets."""

    def __init__(self, keys: Sequence[OffloadKey], tickets: Sequence[int] = ()) -> None:
        self.keys = list(keys)
        self.tickets = list(tickets)


class _Block:
    """What the scheduler knows of one block."""

    __slots__ = ("asked_at", "held", "loading", "questions", "ticket", "users")

    def __init__(self, ticket: int, asked_at: float) -> None:
        self.ticket = ticket
        self.asked_at = asked_at
        self.questions: list[int] = []
        self.held: bool | None = None
        self.users: set[str] = set()
        self.loading = 0


class HexKVManager(OffloadingManager):  # type: ignore[misc]  # untyped here
    """Asks the ranks for blocks, for vLLM's scheduler."""

    def __init__(self, ranks: Sequence[Caller], patience: float) -> None:
        self._ranks = ranks
        self._patience = patience
        self._blocks: dict[OffloadKey, _Block] = {}
        self._tickets = count(1)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        del req_context
        return RequestOffloadingContext()

    @guarded(LookupResult.MISS)
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(next(self._tickets), time.monotonic())
            group = get_offload_group_idx(key)
            block.questions = [
                rank.ask("stage", bytes(key), ticket=block.ticket, group=group)
                for rank in self._ranks
            ]
        block.users.add(req_context.req_id)
        if block.held is None:
            self._hear(block)
        if block.held is None:
            return LookupResult.RETRY
        return LookupResult.HIT if block.held else LookupResult.MISS

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        del req_context
        for key in keys:
            self._blocks[key].loading += 1
        return Tickets(list(keys), [self._blocks[key].ticket for key in keys])

    @guarded(None)
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            self._blocks[key].loading -= 1
        self._leave(keys, req_context.req_id)

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        del req_context
        return PrepareStoreOutput(list(keys), Tickets(list(keys)), [])

    @guarded(None)
    def on_request_finished(self, req_context: ReqContext) -> None:
        self._leave(list(self._blocks), req_context.req_id)

    @guarded(None)
    def reset_cache(self) -> None:
        for rank in self._ranks:
            if number := rank.ask("clear"):
                rank.take(number, _CLEAR_SECONDS)

    def shutdown(self) -> None:
        for rank in self._ranks:
            rank.close()

    def _hear(self, block: _Block) -> None:
        """Take in what the ranks say of a block; it is held where all of them hold it."""
        late = time.monotonic() - block.asked_at > self._patience
        for place, number in enumerate(block.questions):
            answer = self._ranks[place].take(number) if number > 0 else None
            if number == 0 or (answer is not None and answer.get("held") is not True) or late:
                self._ranks[place].drop(number)
                block.held = False
                return
            if answer is not None:
                block.questions[place] = -1
        if all(number == -1 for number in block.questions):
            block.held = True

    def _leave(self, keys: Collection[OffloadKey], request: str) -> None:
        """A request is done with blocks; let go of those that nobody waits for."""
        gone: list[int] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is not None:
                block.users.discard(request)
                if not block.users and not block.loading:
                    del self._blocks[key]
                    gone.append(block.ticket)
        if gone:
            for rank in self._ranks:
                rank.ask("release", wanted=False, tickets=gone)


class HexKVWorker(OffloadingWorker):  # type: ignore[misc]  # untyped here
    """Copies blocks between vLLM's memory and what was put aside, while it is called."""

    def __init__(self, staging: Staging, listener: Listener) -> None:
        self._staging = staging
        self._listener = listener
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Tickets) -> bool:
        began = time.monotonic()
        self._done.append(TransferResult(job_id, True, self._store(src_spec, dst_spec)))
        self._done[-1].transfer_time = time.monotonic() - began
        return True

    def submit_load(self, job_id: int, src_spec: Tickets, dst_spec: GPULoadStoreSpec) -> bool:
        began = time.monotonic()
        size = 0
        for key, ticket, block in zip(
            src_spec.keys, src_spec.tickets, dst_spec.block_ids.tolist(), strict=True
        ):
            size += self._staging.load(ticket, get_offload_group_idx(key), block)
        self._done.append(TransferResult(job_id, True, size, time.monotonic() - began))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        self._listener.close()
        self._staging.close()

    @guarded(0)
    def _store(self, source: GPULoadStoreSpec, names: Tickets) -> int:
        return sum(
            self._staging.store(bytes(key), get_offload_group_idx(key), block)
            for key, block in zip(names.keys, source.block_ids.tolist(), strict=True)
        )


class HexKVOffloadingSpec(OffloadingSpec):  # type: ignore[misc]  # untyped here
    """What vLLM's OffloadingConnector builds both sides from."""

    def __init__(self, config: OffloadingConfig) -> None:
        """Read the configuration.

        Raises:
            ConfigError: it is none of hexkv's, or vLLM is to keep several blocks as one.
        """
        super().__init__(config)
        if self.blocks_per_chunk != 1:
            raise ConfigError("hexkv keeps single blocks here: leave out block_size")
        wanted = config.extra_config.get("hexkv", {})
        if not isinstance(wanted, Mapping) or "chunk" in wanted:
            raise ConfigError("hexkv: a configuration without chunk: vLLM says what a block is")
        chunk = {"chunk": {"size": WORDS}}
        self._configured: Configuration = configure(
            {**wanted, **chunk}, discover(), block_tokens=WORDS
        )

    def get_manager(self) -> OffloadingManager:
        place = self._place(make=False)
        ranks = [Caller(socket_path(place, n)) for n in range(self.config.parallel.world_size)]
        for number, rank in enumerate(ranks):
            if not rank.reachable(_START_SECONDS):
                log.error("the worker of rank %d does not listen in %s: no hits", number, place)
        return HexKVManager(ranks, self._configured.connector.lookup_seconds)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        groups = [
            (self._namespace(number, pages), pages)
            for number, refs in enumerate(kv_caches.group_data_refs)
            for pages in [
                [
                    kv_caches.tensors[r.tensor_idx].tensor[:, : r.page_size_bytes].view(torch.uint8)
                    for r in refs
                ]
            ]
        ]
        largest = max((namespace for namespace, _ in groups), key=lambda n: n.layout.token_bytes)
        engine = build(self._configured.engine, largest)
        limit = self._configured.engine.settings.pool.bytes // 2
        staging = Staging(engine, groups, limit)
        path = socket_path(self._place(make=True), self.config.parallel.rank)
        return HexKVWorker(staging, Listener(path, staging))

    def _place(self, *, make: bool) -> Path:
        directory = self._configured.connector.socket_dir
        return meeting_place(directory, f"offloading {self.config.engine_id}", make=make)

    def _namespace(self, group: int, pages: Sequence[torch.Tensor]) -> Namespace:
        config, said = self.config, self._configured.engine.settings.model
        path = Path(config.model.name)
        extra = {
            "block": f"{config.groups[group].tokens_per_block} tokens of group {group}",
            "cache": f"{config.model.dtype} {config.kv_cache_layout}",
            "device": pages[0].device.type,
            "engine": f"vllm offloading {'.'.join(vllm.__version__.split('.')[:2])}",
        }
        return Namespace(
            model=said.name or (path.name if path.is_dir() else config.model.name),
            layout=opaque_layout(WORDS, [page.shape[1] for page in pages]),
            revision=said.revision or (digest_of(path) if path.is_dir() else ""),
            parallel=ParallelSlice(config.parallel.rank, config.parallel.world_size),
            lora=said.lora,
            salt=said.salt.get_secret_value(),
            extra=tuple(sorted({**extra, **said.extra}.items())),
        )
