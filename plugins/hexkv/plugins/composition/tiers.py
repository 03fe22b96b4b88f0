"""Tiers, from a configuration: those of the start, and one that is added later."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockPool
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.index.tenants import DividedIndex, Tenant
from hexkv.core.tiers.rules import TierRules, Writes
from hexkv.core.tiers.runtime import RAW
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.configuration.config import Loaded, load
from hexkv.plugins.configuration.places import Path, suggestion
from hexkv.plugins.configuration.schema import TierSettings
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import Kind, OpenContext
from hexkv.ports import (
    Clock,
    ConfigError,
    FrameFile,
    PeerAccess,
    PoolExhausted,
    ReadOnlyStore,
    StoreError,
    SupportsMapping,
    SupportsOwnMemory,
    SupportsRegistration,
    SupportsScan,
    SupportsZeroCopy,
)

OF_PEERS = "peers"
"""The store adapter whose chunks are peers'."""

_GIVEN = "the tier to attach"


@dataclass(frozen=True, slots=True)
class TierOpener:
    """Opens tiers over one pool."""

    loaded: Loaded
    registry: Registry
    clock: Clock
    pool: BlockPool
    block: int | None
    """Bytes of the largest frame; ``None`` where frames are of any size."""
    peers: PeerAccess | None = None
    """For stores that read from peers."""
    inherited: Mapping[str, FrameFile] = field(default_factory=dict)
    """By tier, the memory that its store has passed on in another process."""

    @property
    def most(self) -> int:
        """Bytes that a tier of blocks of the pool may have."""
        pool = self.pool
        return Pipelining.of(pool).keepable(pool) if self.block else pool.capacity

    def open(self, index: int) -> TierPlan:
        """Open the tier at *index* of the configuration, which was checked.

        Raises:
            ConfigError, AdapterUnavailable, StoreError
        """
        loaded, wanted = self.loaded, self.loaded.settings.tiers[index]
        pool = self.pool
        with naming(loaded, ("tiers", index, "settings")):
            context = OpenContext(
                self.clock,
                wanted.name,
                wanted.budget,
                self.peers,
                isinstance(pool.region, SupportsMapping),
                self.inherited.get(wanted.name),
            )
            tier = _open_tier(wanted, loaded, self.registry, self.most, context)
        with ExitStack() as opened:
            opened.callback(tier.store.close)
            if isinstance(tier.store, SupportsRegistration):
                tier.store.register(pool.region)
            if wanted.budget is not None and not tier.index.decides:
                raise ConfigError(
                    f"{loaded.locate(('tiers', index, 'budget'))}: store {wanted.store!r} cannot"
                    " list what it holds, so no budget can be kept after a restart"
                )
            if "write" in wanted.model_fields_set and wanted.write != tier.rules.writes.value:
                where = loaded.locate(("tiers", index, "write"))
                raise ConfigError(f"{where}: store {wanted.store!r} takes no writes")
            if isinstance(tier.store, SupportsZeroCopy) and wanted.serdes != (RAW,):
                where = loaded.locate(("tiers", index, "serde"))
                raise ConfigError(
                    f"{where}: store {wanted.store!r} keeps blocks as they are; compressed memory"
                    " is a tier of store 'heap'"
                )
            opened.pop_all()
        return tier

    def added(
        self, section: Mapping[str, object], names: Collection[str], serdes: Collection[str]
    ) -> TierPlan:
        """Open a tier that *section* describes, as one of a configuration's ``tiers``.

        Args:
            section: of a configuration.
            names: of the existing tiers.
            serdes: that were opened.

        Raises:
            ConfigError, AdapterUnavailable, StoreError
        """
        given = load(environ={}, overrides={"tiers": [section]}, source=_GIVEN)
        (wanted,) = given.settings.tiers
        settings = self.loaded.settings
        index = len(settings.tiers)
        origins = {("tiers", index): _GIVEN} | {
            ("tiers", index, *place[2:]): origin
            for place, origin in given.origins.items()
            if place[:2] == ("tiers", 0)
        }
        loaded = Loaded(
            settings.model_copy(update={"tiers": (*settings.tiers, wanted)}),
            {**self.loaded.origins, **origins},
        )
        check_tier(loaded, self.registry, index)
        if wanted.name in names:
            place = loaded.locate(("tiers", index, "name"))
            raise ConfigError(f"{place}: there is a tier {wanted.name!r} already")
        if lacking := [name for name in wanted.serdes if name not in (RAW, *serdes)]:
            place = loaded.locate(("tiers", index, "serde"))
            raise ConfigError(f"{place}: serde {lacking[0]!r} was not opened at the start")
        if wanted.budget is not None and self.block and wanted.budget < self.block:
            place = loaded.locate(("tiers", index, "budget"))
            raise ConfigError(f"{place}: does not hold one chunk, which takes {self.block} bytes")
        opener = TierOpener(loaded, self.registry, self.clock, self.pool, self.block, self.peers)
        return opener.open(index)


def check_tier(loaded: Loaded, registry: Registry, index: int) -> object:
    """Compare a tier with the installed plugins. Return its adapter's settings; opens nothing.

    Raises:
        ConfigError: it names an adapter that is not installed, or gives one bad settings.
    """
    tier, at = loaded.settings.tiers[index], ("tiers", index)
    find_adapter(loaded, registry, "store", tier.store, (*at, "store"))
    find_adapter(loaded, registry, "policy", tier.policy, (*at, "policy"))
    for name in tier.serdes:
        if name != RAW:
            find_adapter(loaded, registry, "serde", name, (*at, "serde"))
    return parse_adapter(loaded, registry, "store", tier.store, tier.settings, (*at, "settings"))


def find_adapter(loaded: Loaded, registry: Registry, kind: Kind, name: str, path: Path) -> None:
    """Refuse an adapter that is not installed, by the place that names it.

    Raises:
        ConfigError: there is none.
    """
    try:
        registry.find(kind, name)
    except ConfigError as error:
        raise ConfigError(f"{loaded.locate(path)}: {error}") from error


def parse_adapter(
    loaded: Loaded,
    registry: Registry,
    kind: Kind,
    name: str,
    values: Mapping[str, object],
    path: Path,
) -> object:
    """Return an adapter's settings, which are at *path*, as an instance of its dataclass.

    Raises:
        ConfigError: they are invalid.
    """
    return registry.parse(kind, name, values, lambda inner: loaded.locate((*path, *inner)))


@contextmanager
def naming(loaded: Loaded, path: Path) -> Iterator[None]:
    """Add *path*, the place of an adapter's settings, to errors of opening it."""
    try:
        yield
    except (ConfigError, StoreError, PoolExhausted) as error:
        if loaded.locate(path) not in str(error):
            place = loaded.locate((*path, error.setting) if error.setting else path)
            error.args = (f"{place}: {error}",)
        raise


def _open_tier(
    wanted: TierSettings,
    loaded: Loaded,
    registry: Registry,
    most: int,
    context: OpenContext,
) -> TierPlan:
    """Open a tier; one that keeps blocks of the pool has *most* bytes of it at most."""
    store = registry.open("store", wanted.store, wanted.settings, context)
    # A store that cannot be listed may hold chunks that no index of ours would know of.
    listed = isinstance(store, SupportsScan)
    budget = wanted.budget
    if isinstance(store, SupportsZeroCopy) and not (
        isinstance(store, SupportsOwnMemory) and store.own_memory
    ):
        budget = most if budget is None else min(budget, most)
    chunk = loaded.settings.chunk
    tails = in_memory(store) if wanted.tails is None else wanted.tails
    breaker = BreakerRules(
        wanted.breaker.failures, wanted.breaker.pause, wanted.breaker.longest_pause
    )
    fixed = isinstance(store, ReadOnlyStore) and store.read_only
    rules = TierRules(
        writes=Writes.NONE if fixed else Writes(wanted.write),
        reads=wanted.read,
        promotes=wanted.promote and not fixed,
        retries=wanted.retries,
        min_reuse=wanted.min_reuse,
        shortest=chunk.size if chunk.tail and not tails else 1,
        serdes=wanted.serdes,
        lane=LaneRules(wanted.workers, wanted.queue, breaker),
    )
    if not listed:
        return TierPlan(wanted.name, store, rules=rules)

    def index(size: int | None) -> TierIndex:
        return TierIndex(
            registry.open("policy", wanted.policy, {}, OpenContext(context.clock)), size
        )

    quotas = _quotas(loaded, wanted.name, budget)
    if not quotas:
        return TierPlan(wanted.name, store, index(budget), rules)
    rest = index((budget or 0) - sum(quotas.values()))
    shares = {tenant: index(quota) for tenant, quota in quotas.items()}
    return TierPlan(wanted.name, store, DividedIndex(rest, shares), rules)


def in_memory(store: object) -> bool:
    """True if the content of *store* ends with this process."""
    return isinstance(store, SupportsZeroCopy) or (
        isinstance(store, SupportsOwnMemory) and store.own_memory
    )


def tenants_of(loaded: Loaded) -> list[Tenant]:
    """Return the tenants of a configuration."""
    return [
        Tenant(tenant.name, tenant.salt.get_secret_value(), tenant.quotas)
        for tenant in loaded.settings.tenants
    ]


def check_quotas(loaded: Loaded) -> None:
    """Refuse a quota of a tier that there is not.

    Raises:
        ConfigError: there is one.
    """
    names = [wanted.name for wanted in loaded.settings.tiers]
    for number, tenant in enumerate(loaded.settings.tenants):
        for name in tenant.quotas:
            if name not in names:
                where = loaded.locate(("tenants", number, "quotas", name))
                hint = suggestion(name, names, noun="tiers")
                raise ConfigError(f"{where}: no tier has this name{hint}")


def _quotas(loaded: Loaded, tier: str, budget: int | None) -> dict[str, int]:
    """Return each tenant's quota of *tier*."""
    tenants = loaded.settings.tenants
    quotas = {tenant.name: tenant.quotas[tier] for tenant in tenants if tier in tenant.quotas}
    if quotas and (budget is None or sum(quotas.values()) > budget):
        raise ConfigError(
            f"{loaded.locate(('tenants',))}: the quotas of tier {tier!r} are"
            f" {sum(quotas.values())} bytes together, its budget is {budget}"
        )
    return quotas
