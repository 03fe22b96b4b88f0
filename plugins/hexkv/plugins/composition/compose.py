"""The composition root: from a configuration to an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from hexkv.core.admin.explain import ELSEWHERE
from hexkv.core.engine.calls import Calls
from hexkv.core.engine.engine import CacheEngine, Deadlines
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.memory.pool import BlockPool
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.core.runtime import Runtime
from hexkv.core.tiers.cache import TierStack, find_tiers_soon
from hexkv.core.tiers.local import LocalChunks
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.stores.bandwidth import ComputeRate
from hexkv.core.tiers.stores.checked import CheckedSerde
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.administering import (
    admin_address,
    administration,
    reachable,
    serve_admin,
)
from hexkv.plugins.composition.beside import open_segments
from hexkv.plugins.composition.checking import check, doubts, serdes_of
from hexkv.plugins.composition.identity import identify, refuse_unmeasured
from hexkv.plugins.composition.observing import Observation, open_observation
from hexkv.plugins.composition.peers import OpenedPeers, PeersOpener
from hexkv.plugins.composition.starting import begin_log, report_start
from hexkv.plugins.composition.tiers import OF_PEERS, TierOpener, in_memory, naming, tenants_of
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.places import Path
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.plugins.discovery.algorithms import frame_codec, hash_algorithm
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.observing.telemetry import EngineInfo, Totals
from hexkv.plugins.spec import OpenContext
from hexkv.plugins.threads import Threads, step_aside
from hexkv.ports import (
    KEY_BYTES,
    PAGE,
    Administration,
    ChunkKey,
    Clock,
    ConfigError,
    Deadline,
    EventSink,
    FrameFile,
    MemoryRegion,
    Namespace,
    Serde,
    Telemetry,
    frame_bytes,
)

log = logging.getLogger(__name__)

_ANY_CHUNK = ChunkKey(bytes(KEY_BYTES))


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The parts of a process that all others are built with."""

    opened: ExitStack
    """Closes everything that was opened."""

    loaded: Loaded
    registry: Registry
    clock: Clock
    telemetry: Telemetry
    """Receives every operation."""

    observation: Observation
    events: Sequence[EventSink] = ()
    """Receive the content of each tier, beside those of *observation*."""

    rank: int = 0
    """The value of ``{rank}`` in the address of administration."""


def build(
    settings: EngineSettings | Loaded,
    namespace: Namespace,
    *,
    registry: Registry | None = None,
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
    events: Sequence[EventSink] = (),
    rank: int | None = None,
) -> CacheEngine:
    """Return the engine that *settings* describe. If that fails, everything is closed again.

    Args:
        settings: preferably from :func:`~hexkv.plugins.configuration.config.load`: then messages
            name the origin of a value.
        namespace: of the model whose KV is cached; see
            :func:`~hexkv.plugins.composition.identity.identify`.
        registry: the installed plugins, if they are known already.
        clock: the machine's, unless time is simulated.
        telemetry: receives every operation; by default it adds up (:class:`Totals`), and is the
            engine's ``telemetry``.
        events: receive the content of each tier.
        rank: of this process among those of one host's, each of which may be observed; by default
            the namespace's, which several have where their KV is the same.

    Raises:
        ConfigError: the settings describe nothing that can be built.
        AdapterUnavailable: an adapter's requirement is missing.
        PoolExhausted: the machine does not have the pool's memory.
        StoreError: a store cannot be opened.
    """
    loaded = settings if isinstance(settings, Loaded) else Loaded(settings)
    settings = loaded.settings
    registry = discover() if registry is None else registry
    begin_log(loaded, registry)
    clock = SystemClock() if clock is None else clock
    check(loaded, registry)
    for doubt in doubts(loaded):
        log.warning("%s", doubt)
    namespace = identify(namespace, loaded)
    refuse_unmeasured(namespace, loaded)
    if settings.node and events:
        log.warning("no events of a node's tiers: an engine over a node publishes none")
    telemetry = Totals() if telemetry is None else telemetry
    if isinstance(telemetry, Totals):
        telemetry.info = EngineInfo.of(namespace, settings.compute_rate, client=bool(settings.node))
    open_chunks = _over_node if settings.node else _over_tiers
    with ExitStack() as opened:
        part = namespace.parallel.rank
        shown = part if rank is None else rank
        observation = open_observation(loaded, registry, clock, rank=shown)
        opened.callback(observation.close)
        observation.record(namespace, settings.chunk.size)
        observation.trace(namespace.model)
        context = BuildContext(
            opened, loaded, registry, clock, telemetry, observation, events, part
        )
        requests, tail, peers = open_chunks(context, namespace)
        deadlines = Deadlines(**settings.deadlines.model_dump())
        tenants = tenants_of(loaded)
        administer: Callable[[Calls], Administration] | str = ELSEWHERE
        if isinstance(requests.chunks, LocalChunks):
            stack, access = requests.chunks.stack, None if peers is None else peers.access
            block = _block(loaded, namespace)
            opener = TierOpener(loaded, registry, clock, stack.pool, block, access)
            administer = administration(opener, stack, deadlines, tenants)
        engine = CacheEngine(
            namespace,
            requests,
            PrefixChunker(settings.chunk.size, tail),
            algorithm=hash_algorithm(settings.hash),
            seeded=settings.chunk.seeded,
            longest=settings.chunk.longest_prompt,
            deadlines=deadlines,
            tenants=tenants,
            sink=observation.prompts,
            administer=administer,
            segments=open_segments(loaded, registry, clock),
        )
        opened.pop_all()
        opened.callback(engine.close)
        if isinstance(requests.chunks, LocalChunks):
            if peers is not None:
                engine.at_close(peers.close)
            serve_admin(engine, loaded, registry, clock, rank=part)
        engine.at_close(observation.close)
        observation.serve(engine)
        report_start(loaded, requests.chunks)
        opened.pop_all()
    return engine


def _block(loaded: Loaded, namespace: Namespace) -> int:
    """Return the bytes of the largest frame."""
    return frame_bytes(namespace.layout.chunk_bytes(loaded.settings.chunk.size))


def _over_tiers(
    context: BuildContext, namespace: Namespace
) -> tuple[Pipeline, int, OpenedPeers | None]:
    """Return the pool and tiers of this process, where tails of chunks end, and its peers."""
    loaded, settings = context.loaded, context.loaded.settings
    block = _block(loaded, namespace)
    check_sizes(loaded, block)
    serdes = open_serdes(loaded, context.registry, OpenContext(context.clock))
    stack, peers = open_stack(context, serdes, block)
    # Tails that no tier keeps are not named either.
    kept = any(tier.rules.shortest < settings.chunk.size for tier in stack.tiers)
    prefetch = PrefetchRules(**settings.prefetch.model_dump())
    chunks = LocalChunks(stack, patience=settings.deadlines.lookup)
    return Pipeline(chunks, stack.runtime, prefetch), settings.chunk.tail if kept else 0, peers


def _over_node(context: BuildContext, _: Namespace) -> tuple[Pipeline, int, None]:
    """Return the pool and the tiers of a node, which decides which of them keep tails."""
    loaded, settings = context.loaded, context.loaded.settings
    observation, plain = context.observation, OpenContext(context.clock)
    with naming(loaded, ("node",)):
        service = context.registry.open("node", "unix", {"socket": settings.node}, plain)
    context.opened.callback(service.close)
    observation.tell(service)
    prefetch = PrefetchRules(**settings.prefetch.model_dump())
    runtime = Runtime(
        clock=context.clock,
        executor=Threads(),
        telemetry=context.telemetry,
        calls=observation.calls,
        spans=observation.spans,
        serdes=open_serdes(loaded, context.registry, plain),
    )
    return Pipeline(service, runtime, prefetch), settings.chunk.tail, None


def open_stack(
    context: BuildContext,
    serdes: Mapping[str, Serde],
    block: int | None,
    region: MemoryRegion | None = None,
    meet: Callable[[str, bytes], None] | None = None,
    stores: Mapping[str, FrameFile] | None = None,
) -> tuple[TierStack, OpenedPeers | None]:
    """Return the pool and the tiers of a checked configuration, and the peers it names.

    Args:
        context: of the process, with the configuration.
        serdes: those that frames may have been written with, beside plain ones.
        block: bytes of the largest frame; ``None`` where frames are of any size: then they lie in
            the pool wherever there is room, and a tier in memory keeps as many as its budget
            allows.
        region: the pool's memory, which another process still has: peers are served once that gave
            it up. ``None``: the provider gives it.
        meet: see :class:`~hexkv.plugins.composition.peers.OpenedPeers`.
        stores: by tier, the memory that its store has passed on in the process that has *region*.

    Raises:
        ConfigError, AdapterUnavailable, PoolExhausted, StoreError: as :func:`build`.
    """
    loaded, registry, clock = context.loaded, context.registry, context.clock
    settings, opened = loaded.settings, context.opened
    codec = frame_codec(registry, settings.checksum)
    pool = settings.pool
    executor = Threads()
    inherited = region is not None
    if region is None:
        with naming(loaded, ("pool", "settings")):
            provider = registry.open("memory", pool.provider, pool.settings, OpenContext(clock))
        with naming(loaded, ("pool", "bytes")):
            region = provider.allocate(pool.bytes)
    size = len(region.buffer) // PAGE * PAGE
    blocks = BlockPool(region, block or size, poison=pool.poison, executor=executor)
    opened.callback(blocks.close)
    admin = reachable(admin_address(loaded, context.rank))
    peers: OpenedPeers | None = None
    if settings.peers.channel or settings.directory.adapter:
        open_peers: PeersOpener = registry.open("peers", "service", {}, OpenContext(clock))
        peers = open_peers(opened, loaded, registry, clock, admin, region)
    access = None if peers is None else peers.access
    opener = TierOpener(loaded, registry, clock, blocks, block, access, stores or {})
    tiers = []
    for index in range(len(settings.tiers)):
        tier = opener.open(index)
        opened.callback(tier.store.close)
        tiers.append(tier)
    runtime = TierRuntime(
        pool=blocks,
        codec=codec,
        clock=clock,
        executor=executor,
        telemetry=context.telemetry,
        events=context.events,
        serdes=serdes,
        computing=ComputeRate(settings.compute_rate),
        occupied=step_aside,
    )
    if peers is not None:
        runtime = peers.report(runtime, tiers)
    observation = context.observation
    runtime = replace(runtime, calls=observation.calls, spans=observation.spans)
    kinds = {tier.name: in_memory(tier.store) for tier in tiers}
    if (feed := observation.follow(kinds)) is not None:
        runtime = replace(runtime, events=(*runtime.events, feed))
    stack = TierStack(tiers, runtime)
    until = Deadline.after(clock, settings.deadlines.retrieve)
    for wanted, opened_tier in zip(settings.tiers, stack.tiers, strict=True):
        # Peers come and go, which the directory reports.
        if opened_tier.remote and not opened_tier.indexing and wanted.store != OF_PEERS:
            # Log an unreachable store now, not once a request is slower.
            find_tiers_soon([opened_tier], [_ANY_CHUNK], until, lambda _: None)
    if peers is not None:
        peers.begin(stack, block, meet, paused=inherited)
    return stack, peers


def check_sizes(loaded: Loaded, frame: int) -> None:
    """Refuse a pool, or a budget, that does not hold one chunk, whose frame has *frame* bytes."""
    sizes: list[tuple[Path, int | None]] = [(("pool", "bytes"), loaded.settings.pool.bytes)]
    for index, tier in enumerate(loaded.settings.tiers):
        sizes.append((("tiers", index, "budget"), tier.budget))
    for path, size in sizes:
        if size is not None and size < frame:
            raise ConfigError(
                f"{loaded.locate(path)}: {size} bytes do not hold one chunk of"
                f" {loaded.settings.chunk.size} tokens, which takes {frame}"
            )


def open_serdes(loaded: Loaded, registry: Registry, context: OpenContext) -> dict[str, Serde]:
    """Open every serde that can be opened here: frames may have been written with any of them.

    Each under the name that frames give it, and under the one that configurations use.
    """
    settings = loaded.settings
    wanted = serdes_of(settings)
    opened = dict(registry.open_all("serde", context, wanted, CheckedSerde.of))
    for name, path in wanted.items():
        if name != RAW:
            values = settings.serdes.get(name, {})
            with naming(loaded, path):
                opened[name] = CheckedSerde.of(registry.open("serde", name, values, context))
    return {serde.name: serde for serde in opened.values()} | opened
