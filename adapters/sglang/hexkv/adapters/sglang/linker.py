"""An external cache linker: SGLang's device memory, and behind it hexkv's tiers at once.

SGLang makes one in each scheduler process (since 0.5.23; ``--enable-unified-cache-external-linker
--unified-cache-external-linker-backend dynamic``) and calls it from the scheduler's thread. A load
that fails once it was accepted is an error for the user. So pages are read and verified before
``load`` says yes, into host memory, and only copies remain to be made while the model runs.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Mapping
from threading import Thread
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter,
    UnifiedCacheLinker,
)

from hexkv.adapters.sglang.configuration import Said
from hexkv.adapters.sglang.devices import device_pages
from hexkv.adapters.sglang.identity import Rank
from hexkv.adapters.sglang.opening import open_engine
from hexkv.adapters.sglang.shelf import Shelf
from hexkv.adapters.sglang.staging import Staged
from hexkv.kernels.paged import PagedKV
from hexkv.plugins.discovery import discover
from hexkv.plugins.guard import Guard
from hexkv.ports import ConfigError

log = logging.getLogger("hexkv.sglang")
guarded = Guard(log)

_WAIT_SECONDS = 60.0
"""How long closing waits for each thread, which has deadlines of its own."""


class HexKVLinker(UnifiedCacheLinker):  # type: ignore[misc]  # untyped here
    """hexkv right behind the device's KV memory."""

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: Mapping[str, object] | None = None,
        forward_stream: Any = None,
    ) -> None:
        """Open the tiers of this rank.

        Raises:
            ConfigError, AdapterUnavailable, StoreError, PoolExhausted: they cannot be opened.
            LayoutMismatch: the model keeps more than KV for each token, or it cannot be moved.
        """
        del server_args
        others = sorted(str(getattr(c, "name", c)) for c in components if _name(c) != "FULL")
        if others:
            raise ConfigError(
                f"the linker moves plain KV only, not {', '.join(others)}: use HiCache"
            )
        said = Said(extra_config or {}, discover())
        pool = params.token_to_kv_pool_allocator.get_kvcache()
        self._device = device_pages(pool, int(params.page_size))
        self._group = params.attn_tp_cache_group or params.tp_cache_group
        self._rank = _rank_of(params, self._group, replicated=hasattr(pool, "kv_lora_rank"))
        engine = open_engine(
            said, self._device.layout, self._rank, page=self._device.page, name=None
        )
        self._engine = engine
        self._ours = said.ours
        self._shelf = Shelf(engine, self._device.page)
        self._left = said.ours.staging_bytes
        self._queued: dict[str, Staged] = {}
        self._loads: queue.SimpleQueue[tuple[int, list[Staged], Any] | None] = queue.SimpleQueue()
        self._offloads: queue.Queue[tuple[list[str], torch.Tensor, list[Any]] | None] = (
            queue.Queue()
        )
        self._done: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.forward_stream = forward_stream
        self.pools = {PoolName.KV: pool}
        self.layer_done_counter = LayerWiseLoadCounter(self._device.layout.layers)
        self._threads = [
            Thread(target=self._give, name="hexkv-give", daemon=True),
            Thread(target=self._save, name="hexkv-save", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @guarded([])
    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        """Every length of the prefix, in pages, that can be loaded. Its pages are pinned.

        Reading begins here, so that ``load`` finds the bytes in memory.
        """
        keys = _keys(transfers)
        if not keys or not self._ours.read:
            return []
        named = self._shelf.named(keys)
        found = self._engine.lookup(named, pin=rid).hit_tokens // self._device.page
        if found:
            self._engine.prefetch(rid, self._shelf.named(keys[:found]))
        return list(range(1, found + 1))

    def load(self, rid: str, transfers: list[Any]) -> bool:
        """Read and verify what goes into these slots. ``False`` makes SGLang compute it.

        All ranks of the tensor-parallel group say the same: SGLang relies on that.
        """
        staged = self._stage(rid, transfers)
        if self._agreed(staged is not None) and staged is not None:
            self._queued[rid] = staged
            return True
        return False

    @guarded(None)
    def _stage(self, rid: str, transfers: list[Any]) -> Staged | None:
        try:
            keys = _keys(transfers)
            [slots] = [t.device_indices for t in transfers if t.name == PoolName.KV]
            if self._device.layout.chunk_bytes(len(slots)) > self._left:
                log.warning("%d tokens do not fit into staging_bytes: computed instead", len(slots))
                return None
            staged = Staged(self._device, slots.cpu())
            got = self._engine.retrieve(self._shelf.named(keys), staged.window, lookup_id=rid)
            return staged if got.hit_tokens == len(keys) * self._device.page else None
        finally:
            self._engine.unpin(rid)

    def _agreed(self, mine: bool) -> bool:
        if self._rank.tensors == 1:
            return mine
        vote = torch.tensor([int(mine)])
        torch.distributed.all_reduce(vote, torch.distributed.ReduceOp.MIN, group=self._group)
        return bool(vote.item())

    def cancel_queued_load(self, rid: str) -> bool:
        return self._queued.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        """Begin to copy what was queued, layer by layer in the order of the model."""
        if not self._queued:
            return -1
        staged, self._queued = list(self._queued.values()), {}
        index: int = self.layer_done_counter.update_producer()
        ready = torch.get_device_module(self._device.device).Event()
        ready.record()
        self._loads.put((index, staged, ready))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return bool(self.layer_done_counter.finish(counter_index))

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        """Queue pages to be stored. Their slots stay as they are until that is done."""
        del session_id
        keys = _keys(transfers)
        if not keys:
            return False
        first = not self._rank.replicated or self._rank.tensor == 0
        if not self._ours.write or not first:
            self._done.put(True)
            return True
        [slots] = [t.device_indices for t in transfers if t.name == PoolName.KV]
        self._offloads.put((keys, slots, self.record_offload_ready()))
        return True

    def num_completed_offloads(self) -> int:
        return self._done.qsize()

    def pop_completed_offload(self) -> bool:
        return self._done.get_nowait()

    def reset(self) -> None:
        """Wait for everything that is under way, and forget what was queued."""
        self._queued.clear()
        for index in list(self.layer_done_counter.futures):
            self.layer_done_counter.finish(index)
        self._offloads.join()
        while not self._done.empty():
            self._done.get_nowait()
        self.layer_done_counter.reset()

    def close(self) -> None:
        """Store what is under way, and close the tiers."""
        self.reset()
        self._loads.put(None)
        self._offloads.put(None)
        for thread in self._threads:
            thread.join(_WAIT_SECONDS)
        self._engine.close()

    def _give(self) -> None:
        while (task := self._loads.get()) is not None:
            index, staged, ready = task
            try:
                ready.synchronize()
                for layer in range(self._device.layout.layers):
                    for part in staged:
                        part.give(layer)
                    self._settle()
                    self.layer_done_counter.complete(index, layer)
            except Exception as error:
                log.exception("copying into the device failed")
                self.layer_done_counter.fail(index, error)

    def _settle(self) -> None:
        if self._device.device.type == "cuda":
            torch.cuda.current_stream(self._device.device).synchronize()

    def _save(self) -> None:
        while (task := self._offloads.get()) is not None:
            try:
                self._done.put(self._store(*task))
            finally:
                self._offloads.task_done()

    @guarded(False)
    def _store(self, keys: list[str], slots: torch.Tensor, ready: list[Any]) -> bool:
        for event in ready:
            event.synchronize()
        window = PagedKV(self._device.layout, self._device.planes, slots)
        return self._shelf.save(keys, window)


def _keys(transfers: list[Any]) -> list[str]:
    [kv] = [transfer for transfer in transfers if transfer.name == PoolName.KV]
    return list(kv.keys or ())


def _name(component: Any) -> str:
    return str(getattr(component, "name", component)).upper()


def _rank_of(params: Any, group: Any, *, replicated: bool) -> Rank:
    """This process's place.

    Raises:
        ConfigError: ranks whose answers this linker cannot bring together.
    """
    for name in ("pp_size", "attn_cp_size"):
        if int(getattr(params, name, 1) or 1) > 1:
            raise ConfigError(f"the linker does not work with {name} > 1: use HiCache")
    tensor, tensors = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        tensor = torch.distributed.get_rank(group=group)
        tensors = torch.distributed.get_world_size(group=group)
    return Rank(tensor, tensors, replicated=replicated)
