"""Builds both sides of the connector from vLLM's configuration, and logs a summary of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from hexkv.adapters.vllm.configuration.configuration import Configuration, configure
from hexkv.adapters.vllm.configuration.identity import Rank, namespace_of
from hexkv.adapters.vllm.configuration.inspection import Memory, saves_within
from hexkv.adapters.vllm.configuration.lora import Adapters, watch
from hexkv.adapters.vllm.configuration.weights import Weights
from hexkv.adapters.vllm.configuration.weights import watch as watch_weights
from hexkv.adapters.vllm.configuration.windows import BlockPages
from hexkv.adapters.vllm.lookup.channel import (
    ChannelClient,
    ChannelServer,
    meeting_place,
    socket_path,
)
from hexkv.adapters.vllm.lookup.under_way import UnderWay
from hexkv.adapters.vllm.metrics.events import EventBuffer
from hexkv.adapters.vllm.metrics.metrics import Tally
from hexkv.adapters.vllm.scheduler.requests import Shape
from hexkv.adapters.vllm.scheduler.scheduler_connector import SchedulerConnector
from hexkv.adapters.vllm.worker.collective import ADDRESS_BYTES, GlooCollective, MeetingPlace
from hexkv.adapters.vllm.worker.rank_cache import LayerParts, RankCache, Together, Windows
from hexkv.adapters.vllm.worker.serving import Handing, LookupServer, Scopes
from hexkv.adapters.vllm.worker.sharded import ShardedCache, ShardedPages, Slice, slices_of
from hexkv.adapters.vllm.worker.streams import beside, settle
from hexkv.adapters.vllm.worker.together import LoadsTogether
from hexkv.adapters.vllm.worker.worker_connector import Window, WorkerConnector
from hexkv.kernels.transfer import marks
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.schema import IN_MEMORY, TierSettings
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.plugins.support.compute_speed import StepTimer
from hexkv.ports import ConfigError, DeviceKV, KVLayout

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("vllm.hexkv")

_START_SECONDS = 10.0
"""Seconds that the scheduler waits for each worker to listen; they began before it."""


def read(config: VllmConfig, memory: Memory) -> Configuration:
    """Return the configuration, as far as this vLLM supports it.

    Raises:
        ConfigError: a setting is not possible.
    """
    extra = config.kv_transfer_config.kv_connector_extra_config
    here = Rank.of(config).world * max(1, config.parallel_config.data_parallel_size_local)
    configured = configure(extra, discover(), block_tokens=memory.block, ranks=here)
    loading = configured.connector.loading
    # A layer is computed twice then, half a step each time.
    if configured.connector.storing == "layerwise" and config.parallel_config.use_ubatching:
        raise ConfigError("storing: layerwise is not possible where steps are cut (enable_dbo)")
    if loading == "async" or not goes_only_forward(config):
        return configured
    log.info("loading is async instead of %s: this vLLM cannot take back part of a step", loading)
    return replace(configured, connector=replace(configured.connector, loading="async"))


def adapters_of(config: VllmConfig) -> Adapters | None:
    """The LoRA adapters that this worker loads from now on; ``None`` without LoRA."""
    if (lora_config := getattr(config, "lora_config", None)) is None:
        return None
    from vllm.lora.worker_manager import WorkerLoRAManager  # with LoRA only: it takes a second

    return watch(lora_config, WorkerLoRAManager)


def goes_only_forward(config: VllmConfig) -> bool:
    """True if vLLM computes wrong tokens after a failed load within a step.

    Its second model runner keeps positions on the device and does not reset them; with steps
    planned ahead, the scheduler does not take back the tokens that it expects (0.25 to 0.32).
    """
    ahead = bool(getattr(config.scheduler_config, "async_scheduling", False))
    return ahead or bool(getattr(config, "use_v2_model_runner", False))


def scheduler_connector(
    config: VllmConfig, memory: Memory, configured: Configuration
) -> SchedulerConnector:
    """Return the scheduler side of the connector."""
    chosen = configured.connector
    world = Rank.of(config).world
    place = _place(config, configured, make=False)
    callers = [ChannelClient(socket_path(place, rank)) for rank in range(world)]
    for rank, caller in enumerate(callers):
        if not caller.reachable(_START_SECONDS):
            log.error("the worker of rank %d does not listen in %s: no hits", rank, place)
    overlapping = bool(getattr(config.scheduler_config, "async_scheduling", False))
    shape = Shape(
        configured.engine.settings.chunk.size,
        memory.block,
        world > 1 or overlapping,
        listens(config),
        configured.engine.settings.chunk.tail,
        saves_within=saves_within(),
    )
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        log.warning(
            "kv_load_failure_policy is %r: a request whose KV is found and then lost fails."
            ' Give "kv_load_failure_policy": "recompute" in --kv-transfer-config.',
            config.kv_transfer_config.kv_load_failure_policy,
        )
    log.info(
        "hexkv %s: chunks of %d tokens%s, %s loading, %s lookups, %d rank(s)",
        metadata.version("hexkv-vllm"),
        shape.chunk,
        f", the last to a block of {shape.tail}" if shape.tail else "",
        chosen.loading,
        "asynchronous" if chosen.async_lookup else "synchronous",
        world,
    )
    engine = str(config.kv_transfer_config.engine_id)
    return SchedulerConnector(chosen, shape, callers, weights=watched_weights(engine, callers))


def watched_weights(engine: str, ranks: Sequence[ChannelClient]) -> Weights:
    """Return the weights of *engine*, watched from now on in the scheduler's process."""
    from vllm.v1.executor.abstract import Executor

    def first() -> str:
        number = ranks[0].ask("weights")
        answer = ranks[0].take(number, _START_SECONDS) if number else None
        return str((answer or {}).get("weights", ""))

    weights = Weights(first)
    watch_weights(Executor, engine, weights)
    return weights


Half = WorkerConnector[DeviceKV] | WorkerConnector[Sequence[DeviceKV]]


class WorkerContext:
    """A worker's connector, and the socket of its engine. Closed by :meth:`close`."""

    def __init__(
        self,
        half: Half,
        listener: ChannelServer,
        place: Path,
        device: torch.device,
        go_on: Callable[[], None],
    ) -> None:
        self.half = half
        self.go_on = go_on
        """Makes the connector use vLLM's KV memory again, after :meth:`leave`."""

        self._listener = listener
        self._place = place
        self._device = device

    def leave(self) -> None:
        """Stop using vLLM's KV memory; no queued copy uses it afterwards. Twice is allowed.

        Raises:
            EngineBusy: a copy does not end.
        """
        self.half.leave()
        settle(self._device)

    def close(self) -> None:
        """Stop listening and close the engine. Twice is allowed."""
        self._listener.close()
        with suppress(OSError):  # the last rank to leave finds it empty
            self._place.rmdir()
        self.half.close()


def worker_connector(
    config: VllmConfig,
    memory: Memory,
    configured: Configuration,
    caches: Mapping[str, torch.Tensor],
    version: str,
    adapters: Adapters | None = None,
) -> WorkerContext:
    """Return the worker side of the connector, with an engine of its own.

    Raises:
        ConfigError, StoreError, PoolExhausted: the engine cannot be built.
        LayoutMismatch: vLLM's tensors do not match its configuration.
    """
    chosen, settings = configured.connector, configured.engine.settings
    rank = Rank.of(config, memory.replicas)
    slices = slices_of(config, memory, rank, chosen, caches, version)
    # The pool's blocks take the frames of the largest.
    base = _largest(slices)
    namespace = replace(
        namespace_of(config, base.pages.layout, rank, configured.engine, inside=base.inside),
        parallel=base.piece,
    )
    shards = len(slices) if chosen.shards else 0
    # Ranks with the same KV load it at different times, and none knows whether it is the last.
    removes = chosen.remove_after_load and rank.replicas == 1
    handing = Handing(rank.number, chosen.hold_seconds, removes, shards)
    with ExitStack() as opened:
        # One rank speaks for all: their tiers differ in bytes, not in chunks.
        ledger = (
            EventBuffer(_media(settings.tiers)) if listens(config) and not rank.number else None
        )
        sinks = [ledger] if ledger else []
        engine = build(configured.engine, namespace, events=sinks, rank=rank.number)
        opened.callback(engine.close)
        sharded = ShardedCache(engine, slices) if shards else None
        scopes = Scopes(engine.namespace, adapters)
        tally = Tally()
        together = None if sharded else _together(config, configured, rank, base.pages.layout)
        if together is not None:
            opened.callback(together.close)
        # Unless other ranks can see or receive the chunks of this rank, each stores its own.
        saves = rank.first or not (settings.shared or together)
        under_way = None
        if (announcing := engine.announcing) is not None:
            group = str(config.kv_transfer_config.engine_id)
            under_way = UnderWay(
                announcing,
                group,
                SystemClock(),
                tally.waited,
                announces=saves,
                patience=chosen.lookup_seconds / 2,
            )
        chunk_size = settings.chunk.size
        lookup_server = LookupServer(
            sharded or engine,
            scopes,
            prefetch=settings.shared,
            under_way=under_way,
            chunk=chunk_size,
            handing=handing,
            follows=(lambda: False) if together is None else lambda: together.follows,
            weights=namespace.revision,
        )
        place = _place(config, configured, make=True)
        listener = ChannelServer(socket_path(place, rank.number), lookup_server)
        opened.pop_all()

    device = next(iter(caches.values())).device

    def half(
        cache: RankCache[Window],
        look: Callable[[Sequence[Slice]], Windows[Window]],
        together: Together[Window] | None = None,
        parts: LayerParts[Window] | None = None,
    ) -> tuple[WorkerConnector[Window], Callable[[], None]]:
        made = WorkerConnector(
            cache,
            look(slices),
            scopes,
            layer_names=list(caches),
            layerwise=chosen.loading == "layerwise",
            loaders=chosen.loaders if together is None else 1,
            saves=saves,
            saves_within=saves_within(),
            beside=beside(device),
            ledger=ledger,
            chunk=chunk_size,
            tally=tally,
            under_way=under_way,
            own_tiers=not settings.node,
            handing=handing,
            together=together,
            parts=parts,
            timer=StepTimer(marks(device)),
        )

        lookup_server.before_clear = made.void_saves

        def again() -> None:
            made.go_on(look(slices_of(config, memory, rank, chosen, caches, version)))

        return made, again

    worker: Half
    if sharded is not None:
        early = sharded if chosen.storing == "layerwise" else None
        worker, go_on = half(sharded, ShardedPages, parts=early)
    else:
        worker, go_on = half(engine, lambda slices: _largest(slices).pages, together)
    frames = [each.pages.layout.chunk_bytes(settings.chunk.size) for each in slices]
    log.info(
        "hexkv %s under vLLM %s, rank %d of %d: %s; pool of %s (%s); a chunk of %d tokens is %s",
        metadata.version("hexkv"),
        version,
        rank.number,
        rank.world,
        tiers_of(engine.health().tiers),
        _size(engine.health().pool_bytes if settings.node else settings.pool.bytes),
        "the node's" if settings.node else configured.engine.origin(("pool", "bytes")),
        settings.chunk.size,
        _size(sum(frames)),
    )
    if shards:
        log.info("a rank's part of a chunk is kept in %d shard(s), for other ranks", shards)
    if isinstance(base.pages, BlockPages):
        log.info("KV is kept in whole blocks, for vLLM on machines like this one: %s", base.inside)
    return WorkerContext(worker, listener, place, device, go_on)


def _largest(slices: Sequence[Slice]) -> Slice:
    return max(slices, key=lambda each: each.pages.layout.token_bytes)


def _together(
    config: VllmConfig, configured: Configuration, rank: Rank, layout: KVLayout
) -> LoadsTogether | None:
    """Return this rank's part in loads shared by ranks with the same KV; ``None``: it has none.

    Raises:
        ConfigError: the first of these ranks cannot listen at the configured interface.
    """
    chosen, settings = configured.connector, configured.engine.settings
    if not chosen.collective:
        return None
    if rank.replicas == 1:
        log.info("no two ranks hold the same KV: each loads its own")
        return None
    place, interface = None, chosen.collective_interface
    if rank.first:
        with suppress(OSError):  # the others receive an empty address, and do not wait for one
            place = MeetingPlace(interface)
    stage = int(config.parallel_config.tensor_parallel_size)
    here, number = "" if place is None else place.address, rank.number % stage
    address = _exchange(here)[number // rank.replicas * rank.replicas]
    if not address:
        raise ConfigError(f"collective_interface: no rank can listen at {interface!r}")
    collective = GlooCollective(number % rank.replicas, rank.replicas, address, interface, place)
    clock = SystemClock()
    return LoadsTogether(
        collective,
        discover().open("checksum", settings.checksum, {}, OpenContext(clock)),
        layout.chunk_bytes(settings.chunk.size),
        settings.deadlines.retrieve + chosen.collective_seconds,
        clock,
    )


def _exchange(here: str) -> list[str]:
    """Exchange one text per rank of this stage through vLLM's group, and return all of them."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    own = torch.frombuffer(bytearray(here.encode().ljust(ADDRESS_BYTES, b"\0")), dtype=torch.uint8)
    every = [torch.zeros_like(own) for _ in range(group.world_size)]
    torch.distributed.all_gather(every, own, group=group.cpu_group)
    return [bytes(one.tolist()).rstrip(b"\0").decode() for one in every]


class _Sized(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def budget_bytes(self) -> int | None: ...


def tiers_of(tiers: Iterable[_Sized]) -> str:
    """The tiers and their sizes, in words."""
    return ", ".join(f"{tier.name} of {_size(tier.budget_bytes)}" for tier in tiers)


def listens(config: VllmConfig) -> bool:
    """True if vLLM publishes KV events."""
    events = getattr(config, "kv_events_config", None)
    return bool(events is not None and events.enable_kv_cache_events)


def _media(tiers: Sequence[TierSettings]) -> dict[str, str]:
    """VLLM's words for where tiers keep chunks."""
    return {tier.name: "CPU" if tier.store in IN_MEMORY else "STORAGE" for tier in tiers}


def _place(config: VllmConfig, configured: Configuration, *, make: bool) -> Path:
    instance = str(config.kv_transfer_config.engine_id)
    return meeting_place(configured.connector.socket_dir, instance, make=make)


def _size(size: int | None) -> str:
    if size is None:
        return "any size"
    power = next(power for power in range(5) if size >> 10 * power < 10 << 10 or power == 4)
    return f"{size >> 10 * power} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
