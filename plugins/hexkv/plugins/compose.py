"""The composition root: from a configuration to an engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from hexkv.core.engine.engine import CacheEngine, Deadlines
from hexkv.core.engine.half import ChunkHalf
from hexkv.core.engine.leased.half import LeasedHalf
from hexkv.core.engine.tiered import TieredHalf
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.memory.pool import BlockPool
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.checked import CheckedSerde
from hexkv.core.tiers.runtime import RAW, Runtime
from hexkv.core.tiers.tenants import Tenant
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.administering import let_attach, serve_admin
from hexkv.plugins.algorithms import frame_codec, hash_algorithm
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.config import Loaded
from hexkv.plugins.discovery import discover
from hexkv.plugins.identity import identify
from hexkv.plugins.joining import open_joined
from hexkv.plugins.places import Path, suggestion
from hexkv.plugins.registry import Registry, words
from hexkv.plugins.schema import EngineSettings
from hexkv.plugins.spec import Kind, OpenContext
from hexkv.plugins.telemetry import Totals
from hexkv.plugins.threads import Threads
from hexkv.plugins.tiers import TierOpener, check_tier, find_adapter, naming, parse_adapter
from hexkv.ports import (
    PAGE,
    Clock,
    ConfigError,
    EventSink,
    MemoryRegion,
    Namespace,
    PrefixCache,
    Serde,
    SharedMedium,
    SupportsScan,
    SupportsZeroCopy,
    Telemetry,
    frame_bytes,
)

log = logging.getLogger("hexkv")


def build(
    settings: EngineSettings | Loaded,
    namespace: Namespace,
    *,
    registry: Registry | None = None,
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
    events: Sequence[EventSink] = (),
) -> PrefixCache:
    """An engine as *settings* describe it. If that fails, everything opened is closed again.

    Args:
        settings: preferably as :func:`~hexkv.plugins.config.load` gives them: then messages
            say where a value came from.
        namespace: of the model whose KV is cached; see :func:`~hexkv.plugins.identity.identify`.
        registry: what is installed, if that is known already.
        clock: the machine's, unless time is simulated.
        telemetry: told about every operation; by default it adds up (:class:`Totals`), and
            the engine's ``telemetry`` gives it back.
        events: told what each tier holds.

    Raises:
        ConfigError: the settings describe nothing that can be built.
        AdapterUnavailable: an adapter's requirement is missing.
        PoolExhausted: the machine does not have the pool's memory.
        StoreError: a store cannot be opened.
    """
    loaded = _loaded(settings)
    settings = loaded.settings
    registry = discover() if registry is None else registry
    for origin, error in registry.broken.items():
        log.warning("plugin %s is broken: %s", origin, words(error))
    clock = SystemClock() if clock is None else clock
    check(loaded, registry)
    namespace = identify(namespace, loaded)
    if settings.node and events:
        log.warning("what a node's tiers hold is not told: there are no events over a node")
    telemetry = telemetry or Totals()
    open_half = _over_node if settings.node else _over_tiers
    with ExitStack() as opened:
        half, tail = open_half(opened, loaded, namespace, registry, clock, telemetry, events)
        engine = CacheEngine(
            namespace,
            half,
            PrefixChunker(settings.chunk.size, tail),
            algorithm=hash_algorithm(settings.hash),
            seeded=settings.chunk.seeded,
            longest=settings.chunk.longest_prompt,
            deadlines=Deadlines(**settings.deadlines.model_dump()),
            tenants=[
                Tenant(tenant.name, tenant.salt.get_secret_value(), tenant.quotas)
                for tenant in settings.tenants
            ],
        )
        opened.pop_all()
        opened.callback(engine.close)
        if isinstance(half, TieredHalf):
            admin, block = engine.admin.chunks, _block(loaded, namespace)
            let_attach(admin, half.stack, loaded, registry, clock, block)
            serve_admin(admin, loaded, registry, clock, rank=namespace.parallel.rank)
        opened.pop_all()
    return engine


def _block(loaded: Loaded, namespace: Namespace) -> int:
    """Bytes of the largest frame."""
    return frame_bytes(namespace.layout.chunk_bytes(loaded.settings.chunk.size))


def _over_tiers(
    opened: ExitStack,
    loaded: Loaded,
    namespace: Namespace,
    registry: Registry,
    clock: Clock,
    telemetry: Telemetry,
    events: Sequence[EventSink],
) -> tuple[ChunkHalf, int]:
    """The pool and the tiers of this process, and where tails of chunks end."""
    settings = loaded.settings
    block = _block(loaded, namespace)
    _check_sizes(loaded, block)
    serdes = open_serdes(loaded, registry, OpenContext(clock))
    stack = open_stack(opened, loaded, registry, clock, telemetry, events, serdes, block)
    # What no tier keeps is not named either.
    kept = any(tier.rules.shortest < settings.chunk.size for tier in stack.tiers)
    prefetch = PrefetchRules(**settings.prefetch.model_dump())
    half = TieredHalf(stack, prefetch, patience=settings.deadlines.lookup)
    return half, settings.chunk.tail if kept else 0


def _over_node(
    opened: ExitStack,
    loaded: Loaded,
    namespace: Namespace,
    registry: Registry,
    clock: Clock,
    telemetry: Telemetry,
    events: Sequence[EventSink],
) -> tuple[ChunkHalf, int]:
    """The pool and the tiers of a node, which knows itself which of them keep tails."""
    del namespace, events
    settings = loaded.settings
    with naming(loaded, ("node",)):
        service = registry.open("node", "unix", {"socket": settings.node}, OpenContext(clock))
    opened.callback(service.close)
    prefetch = PrefetchRules(**settings.prefetch.model_dump())
    return LeasedHalf(service, clock, Threads(), telemetry, prefetch), settings.chunk.tail


def open_stack(
    opened: ExitStack,
    loaded: Loaded,
    registry: Registry,
    clock: Clock,
    telemetry: Telemetry,
    events: Sequence[EventSink],
    serdes: Mapping[str, Serde],
    block: int | None,
    region: MemoryRegion | None = None,
) -> TierStack:
    """The pool and the tiers of a configuration that was checked.

    Args:
        opened: closes what was opened.
        loaded: the configuration.
        registry: what is installed.
        clock: of every tier.
        telemetry: told about every operation.
        events: told what each tier holds.
        serdes: what frames may have been written with, beside plain ones.
        block: bytes of the largest frame; ``None`` where frames are of any size: then they lie in
            the pool wherever there is room, and a tier in memory keeps whatever its budget allows.
        region: the pool's memory; ``None``: the provider gives it.

    Raises:
        ConfigError, AdapterUnavailable, PoolExhausted, StoreError: as :func:`build`.
    """
    settings = loaded.settings
    codec = frame_codec(registry, settings.checksum)
    pool = settings.pool
    executor = Threads()
    if region is None:
        with naming(loaded, ("pool", "settings")):
            provider = registry.open("memory", pool.provider, pool.settings, OpenContext(clock))
        region = provider.allocate(pool.bytes)
    size = len(region.buffer) // PAGE * PAGE
    blocks = BlockPool(region, block or size, poison=pool.poison, executor=executor)
    opened.callback(blocks.close)
    opener = TierOpener(loaded, registry, clock, blocks, block)
    tiers = []
    for index in range(len(settings.tiers)):
        tier = opener.open(index)
        opened.callback(tier.store.close)
        tiers.append(tier)
    runtime = Runtime(
        blocks, codec, clock, executor, telemetry, events, serdes, settings.compute_rate
    )
    if settings.directory.adapter:
        with naming(loaded, ("directory", "settings")):
            joined = open_joined(settings.directory, registry, clock, _own(loaded, tiers))
        opened.callback(joined.close)
        runtime = replace(runtime, events=(*events, joined.reporting), closing=joined.close)
        joined.reporting.start()
    return TierStack(tiers, runtime)


def _own(loaded: Loaded, tiers: Sequence[TierPlan]) -> list[str]:
    """The tiers that a directory is told of: what every node reads itself is no node's."""
    chosen = loaded.settings.directory.tiers
    if chosen is None:
        return [
            tier.name
            for tier in tiers
            if isinstance(tier.store, SupportsZeroCopy | SupportsScan)
            and not (isinstance(tier.store, SharedMedium) and tier.store.shared)
        ]
    names = [tier.name for tier in tiers]
    for name in chosen:
        if name not in names:
            where = loaded.locate(("directory", "tiers"))
            raise ConfigError(f"{where}: there is no tier {name!r}{suggestion(name, names)}")
    return list(chosen)


@dataclass(frozen=True, slots=True)
class Checked:
    """The adapters' settings, as instances of their dataclasses."""

    pool: object
    tiers: tuple[object, ...]
    directory: object = None
    admin: object = None
    """``None`` where administration is not served."""


def check(loaded: Loaded, registry: Registry) -> Checked:
    """Compare a configuration with what is installed; opens nothing.

    Raises:
        ConfigError: it names an adapter that is not there, or gives one bad settings.
    """

    def find(kind: Kind, name: str, path: Path) -> None:
        find_adapter(loaded, registry, kind, name, path)

    def parse(kind: Kind, name: str, values: Mapping[str, object], path: Path) -> object:
        return parse_adapter(loaded, registry, kind, name, values, path)

    settings = loaded.settings
    if settings.node:
        find("node", "unix", ("node",))
        return Checked(None, ())
    find("checksum", settings.checksum, ("checksum",))
    directory = None
    if settings.directory.adapter:
        find("directory", settings.directory.adapter, ("directory", "adapter"))
        own = settings.directory.settings
        place: Path = ("directory", "settings")
        directory = parse("directory", settings.directory.adapter, own, place)
    find("memory", settings.pool.provider, ("pool", "provider"))
    pool = parse("memory", settings.pool.provider, settings.pool.settings, ("pool", "settings"))
    tiers = [check_tier(loaded, registry, index) for index in range(len(settings.tiers))]
    for name, values in settings.serdes.items():
        find("serde", name, ("serdes", name))
        parse("serde", name, values, ("serdes", name))
    admin = None
    if settings.admin:
        find("admin", "socket", ("admin",))
        admin = parse("admin", "socket", settings.admin, ("admin",))
    return Checked(pool, tuple(tiers), directory, admin)


def _loaded(settings: EngineSettings | Loaded) -> Loaded:
    return settings if isinstance(settings, Loaded) else Loaded(settings)


def _check_sizes(loaded: Loaded, frame: int) -> None:
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
    """Every serde that can be opened here: frames may have been written with any of them.

    Each under the name that frames give it, and under the one that configurations use.
    """
    settings = loaded.settings
    wanted: dict[str, Path] = {}
    for index, tier in enumerate(settings.tiers):
        wanted |= dict.fromkeys(tier.serdes, ("tiers", index, "serde"))
    wanted |= {name: ("serdes", name) for name in settings.serdes}
    opened = dict(registry.open_all("serde", context, wanted, CheckedSerde.of))
    for name, path in wanted.items():
        if name != RAW:
            values = settings.serdes.get(name, {})
            with naming(loaded, path):
                opened[name] = CheckedSerde.of(registry.open("serde", name, values, context))
    return {serde.name: serde for serde in opened.values()} | opened
