"""A configuration compared with the installed plugins, before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hexkv.core.tiers.runtime import RAW
from hexkv.plugins.composition.tiers import (
    check_quotas,
    check_tier,
    find_adapter,
    parse_adapter,
)
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.places import Path
from hexkv.plugins.configuration.schema import EngineSettings, SegmentSettings
from hexkv.plugins.configuration.sizes import human_size
from hexkv.plugins.discovery.registry import Registry, unfit
from hexkv.plugins.spec import Kind


@dataclass(frozen=True, slots=True)
class Checked:
    """The adapters' settings, as instances of their dataclasses."""

    pool: object
    tiers: tuple[object, ...]
    directory: object = None
    peers: object = None
    admin: object = None
    """``None`` if administration is not served."""

    observe: object = None
    """``None`` if the process is not observed."""


def check(loaded: Loaded, registry: Registry) -> Checked:
    """Compare a configuration with the installed plugins; opens nothing.

    Raises:
        ConfigError: it names an adapter that is not installed, or gives one bad settings.
    """

    def find(kind: Kind, name: str, path: Path) -> None:
        find_adapter(loaded, registry, kind, name, path)

    def parse(kind: Kind, name: str, values: Mapping[str, object], path: Path) -> object:
        return parse_adapter(loaded, registry, kind, name, values, path)

    settings = loaded.settings
    if settings.segments != SegmentSettings():
        find("segments", "anywhere", ("segments",))
    observe = None
    if settings.observe:
        find("observe", "server", ("observe",))
        observe = parse("observe", "server", settings.observe, ("observe",))
    if settings.node:
        find("node", "unix", ("node",))
        registry.parse(
            "node", "unix", {"socket": settings.node}, lambda _: loaded.locate(("node",))
        )
        return Checked(None, (), observe=observe)
    find("checksum", settings.checksum, ("checksum",))
    directory = None
    if settings.directory.adapter:
        find("directory", settings.directory.adapter, ("directory", "adapter"))
        own = settings.directory.settings
        place: Path = ("directory", "settings")
        directory = parse("directory", settings.directory.adapter, own, place)
    peers = None
    if settings.peers.channel:
        find("channel", settings.peers.channel, ("peers", "channel"))
        own, place = settings.peers.settings, ("peers", "settings")
        peers = parse("channel", settings.peers.channel, own, place)
    if place := _of_peers(settings):
        find("peers", "service", place)
    find("memory", settings.pool.provider, ("pool", "provider"))
    pool = parse("memory", settings.pool.provider, settings.pool.settings, ("pool", "settings"))
    tiers = [check_tier(loaded, registry, index) for index in range(len(settings.tiers))]
    check_quotas(loaded)
    for name, values in settings.serdes.items():
        find("serde", name, ("serdes", name))
        parse("serde", name, values, ("serdes", name))
    admin = None
    if settings.admin:
        find("admin", "socket", ("admin",))
        find("operate", "verbs", ("admin",))
        admin = parse("admin", "socket", settings.admin, ("admin",))
    return Checked(pool, tuple(tiers), directory, peers, admin, observe)


def _of_peers(settings: EngineSettings) -> Path:
    """Return the place that asks for peers or a directory; empty if none does."""
    if settings.peers.channel:
        return ("peers", "channel")
    return ("directory", "adapter") if settings.directory.adapter else ()


def serdes_of(settings: EngineSettings) -> dict[str, Path]:
    """Return the serdes that a configuration names, and a place that does."""
    found: dict[str, Path] = {}
    for index, tier in enumerate(settings.tiers):
        found |= dict.fromkeys(tier.serdes, ("tiers", index, "serde"))
    return found | {name: ("serdes", name) for name in settings.serdes}


def doubts(loaded: Loaded) -> list[str]:
    """Return what has no effect in a checked configuration, or another one, by place."""
    settings = loaded.settings
    found = list(loaded.retired)
    for index, tier in enumerate(settings.tiers):
        if tier.store == "memory" and (tier.budget or 0) > settings.pool.bytes:
            where = loaded.locate(("tiers", index, "budget"))
            found.append(
                f"{where}: more than the pool has, which keeps the chunks of this tier:"
                f" {loaded.locate(('pool', 'bytes'))} is {human_size(settings.pool.bytes)}"
            )
    return found


def lacking(loaded: Loaded, registry: Registry) -> list[tuple[Path, str]]:
    """Return the adapters of a checked configuration that cannot be used here, and why."""
    settings = loaded.settings
    used: list[tuple[Kind, str, Path]] = [
        ("observe", "server" if settings.observe else "", ("observe",)),
        ("node", "unix" if settings.node else "", ("node",)),
        ("directory", settings.directory.adapter, ("directory", "adapter")),
        ("channel", settings.peers.channel, ("peers", "channel")),
        ("peers", "service" if (place := _of_peers(settings)) else "", place),
        ("admin", "socket" if settings.admin else "", ("admin",)),
        ("operate", "verbs" if settings.admin else "", ("admin",)),
        ("segments", "anywhere" if settings.segments != SegmentSettings() else "", ("segments",)),
    ]
    if not settings.node:
        used.append(("checksum", settings.checksum, ("checksum",)))
        used.append(("memory", settings.pool.provider, ("pool", "provider")))
        for index, tier in enumerate(settings.tiers):
            used.append(("store", tier.store, ("tiers", index, "store")))
        used += [("serde", name, place) for name, place in serdes_of(settings).items()]
    found = []
    for kind, name, place in used:
        if name and name != RAW and (why := unfit(spec := registry.find(kind, name))):
            found.append((place, f"{why} ({spec.hint})" if spec.hint else why))
    return found
