"""An external cache linker: SGLang's device memory, and behind it hexkv's tiers at once.

SGLang makes one in each scheduler process (since 0.5.23; ``--enable-unified-cache-external-linker
--unified-cache-external-linker-backend dynamic``) and calls it from the scheduler's thread. A load
that fails once it was accepted is an error for the user. So all pages are held before ``load``
accepts: they were read and verified and stay in the pool's memory, and only copies remain to be
made while the model runs.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from hexkv.adapters.sglang.configuration import RawConfig
from hexkv.adapters.sglang.forward_times import FORWARDS
from hexkv.adapters.sglang.identity.identity import Rank
from hexkv.adapters.sglang.layer_events import LayerEvents
from hexkv.adapters.sglang.opening import open_engine
from hexkv.adapters.sglang.pages.devices import Revocable, behind, copy_layers, device_pages
from hexkv.adapters.sglang.pages.page_store import PageStore
from hexkv.kernels.guard import Guard
from hexkv.kernels.paged import PagedKV
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.support.causes import causing
from hexkv.ports import ConfigError, CounterName, Hold, InvalidRequest, Reason

log = logging.getLogger("hexkv.sglang")
guarded = Guard(log)

_MOST_OFFLOADS = 1024
"""Offloads that are queued at most. Each keeps SGLang from using its slots for others."""

_WAIT_SECONDS = 60.0
"""Seconds that closing waits for each thread, which has deadlines of its own."""


@dataclass(frozen=True, slots=True)
class Load:
    """Pages that are held, and the slots of the device that they go to."""

    hold: Hold
    slots: torch.Tensor
    size: int

    @property
    def payloads(self) -> list[memoryview]:
        """The KV of each page."""
        return [lease.payload for lease in self.hold.leases if lease is not None]


@dataclass(frozen=True, slots=True)
class Offload:
    """Pages that are to be stored, in these slots of the device once these events have passed."""

    keys: list[str]
    slots: torch.Tensor
    ready: list[Any]
    round: int


class HexKVLinker(UnifiedCacheLinker):  # type: ignore[misc]  # untyped here
    """hexkv right behind the device's KV memory."""

    @causing()
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
        raw = RawConfig(extra_config or {}, discover())
        pool = params.token_to_kv_pool_allocator.get_kvcache()
        self._device = device_pages(pool, int(params.page_size))
        self._group = params.attn_tp_cache_group or params.tp_cache_group
        self._rank = _rank_of(params, self._group, replicated=hasattr(pool, "kv_lora_rank"))
        engine, deadlines, self._weights = open_engine(
            raw, self._device.layout, self._rank, page=self._device.block, name=None
        )
        self._engine = engine
        self._settings = raw.chosen
        self._store = PageStore(
            engine, self._device.block, deadlines, before=FORWARDS.informing(engine)
        )
        self._store.telemetry = engine.telemetry
        self._room = _room(raw.chosen.hold_bytes, engine.health().pool_bytes)
        self._room_lock = Lock()
        self._cut = False
        self._queued: dict[str, Load] = {}
        self._loads: queue.SimpleQueue[tuple[int, list[Load], Any] | None] = queue.SimpleQueue()
        self._offloads: queue.SimpleQueue[Offload | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._round = 0  # of offloads, from one reset to the next
        self._round_lock = Lock()
        self.forward_stream = forward_stream
        self.pools = {PoolName.KV: pool}
        self.layer_done_counter = LayerEvents(self._device.layout.layers)
        self._threads = [
            Thread(target=self._give, name="hexkv-give", daemon=True),
            Thread(target=self._save, name="hexkv-save", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @guarded([])
    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        """Every length of the prefix, in pages, that can be loaded. Its pages are pinned."""
        keys = _keys(transfers)
        if not keys or not self._settings.read or self._weights.off:
            return []
        found = self._store.find(keys[: self._fitting(len(keys))])
        self._store.pin(rid, keys[:found])
        return list(range(1, found + 1))

    def load(self, rid: str, transfers: list[Any]) -> bool:
        """Hold the pages for these slots. ``False`` makes SGLang compute them.

        All ranks of the tensor-parallel group return the same: SGLang relies on that.
        """
        self.cancel_queued_load(rid)
        load = self._hold(rid, transfers)
        agreed = False
        try:
            agreed = self._agreed(load is not None)
        finally:
            if load is not None and not agreed:
                self._release([load])
        if agreed and load is not None:
            self._queued[rid] = load
        return agreed

    @guarded(None)
    def _hold(self, rid: str, transfers: list[Any]) -> Load | None:
        try:
            keys = _keys(transfers)
            [slots] = [t.device_indices for t in transfers if t.name == PoolName.KV]
            size = self._device.layout.chunk_bytes(len(slots))
            if self._weights.off:
                return None
            if not self._take(size):
                log.warning("%d tokens do not fit into hold_bytes: computed instead", len(slots))
                return None
            hold = None
            try:
                hold = self._store.hold(keys, rid)
            finally:
                if hold is None:
                    self._take(-size)
            return None if hold is None else Load(hold, slots.cpu(), size)
        finally:
            self._store.unpin(rid)

    def _fitting(self, pages: int) -> int:
        """The number of *pages* that holds have room for now. SGLang computes the others.

        It loads right after its lookup; loads that are copied in between only add room.
        """
        with self._room_lock:
            fitting = min(pages, self._room // self._device.layout.chunk_bytes(self._device.block))
            cut, self._cut = fitting < pages and not self._cut, self._cut or fitting < pages
        if cut:
            log.warning(
                "hits end where hold_bytes does: larger pool.bytes let more requests load at once"
            )
        return fitting

    def _take(self, size: int) -> bool:
        """Take *size* bytes of those that holds may have, or give them back; False: too many."""
        with self._room_lock:
            if size > self._room:
                return False
            self._room -= size
            return True

    def _release(self, loads: Sequence[Load]) -> None:
        for load in loads:
            load.hold.release()
            self._take(-load.size)

    def _agreed(self, own: bool) -> bool:
        if self._rank.tensors == 1:
            return own
        vote = torch.tensor([int(own)])
        torch.distributed.all_reduce(vote, torch.distributed.ReduceOp.MIN, group=self._group)
        return bool(vote.item())

    def cancel_queued_load(self, rid: str) -> bool:
        load = self._queued.pop(rid, None)
        if load is None:
            return False
        self._release([load])
        return True

    def start_layer_wise_loading(self) -> int:
        """Begin to copy the queued loads, layer by layer in the order of the model."""
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        index: int = self.layer_done_counter.update_producer()
        ready = torch.get_device_module(self._device.device).Event()
        ready.record()
        self._loads.put((index, loads, ready))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return bool(self.layer_done_counter.finish(counter_index))

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        """Queue pages to be stored. Their slots stay as they are until they are copied.

        Never waits. False if too many are queued: these are dropped.
        """
        del session_id
        keys = _keys(transfers)
        if not keys:
            return False
        first = not self._rank.replicated or self._rank.tensor == 0
        if not self._settings.write or not first or self._weights.off:
            self._done.put(True)
            return True
        if self._offloads.qsize() >= _MOST_OFFLOADS:
            self._engine.telemetry.count(CounterName.DROPPED, len(keys), reason=Reason.QUEUE_FULL)
            return False
        [slots] = [t.device_indices for t in transfers if t.name == PoolName.KV]
        ready = self.record_offload_ready()
        self._offloads.put(Offload(keys, slots, ready, self._round))
        return True

    def num_completed_offloads(self) -> int:
        return self._done.qsize()

    def pop_completed_offload(self) -> bool:
        return self._done.get_nowait()

    def reset(self) -> None:
        """Release queued loads, and wait for copies into the device; for no store.

        Queued offloads are dropped: their slots belong to others as soon as this
        returns. Pages that were copied already go on to their tiers.
        """
        self._settle()
        with self._round_lock:
            self._round += 1
            _drain(self._offloads)
            _drain(self._done)
        self.layer_done_counter.reset()

    def _settle(self) -> None:
        for rid in list(self._queued):
            self.cancel_queued_load(rid)
        for index in list(self.layer_done_counter.futures):
            self.layer_done_counter.finish(index)

    def close(self) -> None:
        """Store the offloads under way, up to a limit, and close the tiers."""
        self._settle()
        self._loads.put(None)
        self._offloads.put(None)
        for thread in self._threads:
            thread.join(_WAIT_SECONDS)
        self.reset()
        self._engine.close()

    def _give(self) -> None:
        while (task := self._loads.get()) is not None:
            index, loads, ready = task
            try:
                self._copy(index, loads, ready)
            except Exception as error:
                log.exception("copying into the device failed")
                self.layer_done_counter.fail(index, error)

    def _copy(self, index: int, loads: list[Load], ready: Any) -> None:
        """Copy layer by layer. All holds are released before any layer counts as landed."""
        try:
            each = [(load.slots, load.payloads) for load in loads]
            queued = partial(self.layer_done_counter.queued, index)
            copy_layers(self._device, each, ready, queued)
        finally:
            self._release(loads)
        for layer in range(self._device.layout.layers):
            self.layer_done_counter.complete(index, layer)

    def _save(self) -> None:
        while (task := self._offloads.get()) is not None:
            kept = self._keep(task)
            with self._round_lock:
                if task.round == self._round:
                    self._done.put(kept)

    @guarded(False)
    def _keep(self, task: Offload) -> bool:
        slots = PagedKV.on(self._device, task.slots)
        # Also of weights that change: the forward pass that wrote the slots may have been the last.
        window = Revocable(slots, lambda: task.round == self._round and not self._weights.off)
        try:
            with behind(self._device.device, task.ready):
                return self._store.save(task.keys, window)
        except InvalidRequest:
            if window.current():
                raise
            return False


def _drain(queued: queue.SimpleQueue[Any]) -> None:
    with suppress(queue.Empty):
        while True:
            queued.get_nowait()


def _room(wanted: int | None, pool: int) -> int:
    """Bytes that holds may take: at least half of the pool is for everything else."""
    most = pool // 2
    if wanted is not None and wanted > most:
        log.warning("hold_bytes is more than half of the pool: loads hold %d bytes at most", most)
    return most if wanted is None else min(wanted, most)


def _keys(transfers: list[Any]) -> list[str]:
    [kv] = [transfer for transfer in transfers if transfer.name == PoolName.KV]
    return list(kv.keys or ())


def _name(component: Any) -> str:
    return str(getattr(component, "name", component)).upper()


def _rank_of(params: Any, group: Any, *, replicated: bool) -> Rank:
    """This process's place.

    Raises:
        ConfigError: this linker cannot combine the answers of these ranks.
    """
    for name in ("pp_size", "attn_cp_size"):
        if int(getattr(params, name, 1) or 1) > 1:
            raise ConfigError(f"the linker does not work with {name} > 1: use HiCache")
    tensor, tensors = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        tensor = torch.distributed.get_rank(group=group)
        tensors = torch.distributed.get_world_size(group=group)
    return Rank(tensor, tensors, replicated=replicated)
