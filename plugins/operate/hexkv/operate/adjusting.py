"""Settings that change while a cache serves: by an operator's verb, or by a file read anew."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, count
from threading import Lock
from typing import Any, Protocol, cast, runtime_checkable
from weakref import proxy

from pydantic import ValidationError

from hexkv.core.engine.calls import Calls
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.tier import Tier
from hexkv.operate.tier_changes import changed_rules, check_limit
from hexkv.plugins.composition.checking import check
from hexkv.plugins.composition.tiers import TierOpener
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.places import Path, render
from hexkv.plugins.configuration.problems import explain
from hexkv.plugins.configuration.schema import (
    EngineSettings,
    LogSettings,
    Serving,
    TenantSettings,
    TierSettings,
)
from hexkv.plugins.configuration.section import Section
from hexkv.plugins.configuration.sizes import exact_size
from hexkv.plugins.observing import logs
from hexkv.ports import ConfigError, HexKVError, InvalidRequest

log = logging.getLogger("hexkv.admin")

OF_A_TIER = ("budget", "read", "write", "promote", "min_reuse", "retries")
"""Keys of ``tiers[]`` that change while a cache serves, beside whole tiers."""

OTHERS: Mapping[Path, type[Section]] = {
    ("peers", "serve", "rate"): Serving,
    ("compute_rate",): EngineSettings,
    ("log", "level"): LogSettings,
    ("log", "format"): LogSettings,
}
"""Other keys that do, and ``tenants[].quotas``; each with the section that it is in."""


@dataclass(slots=True)
class Changes:
    """Changes of a configuration."""

    tiers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of tiers, by name."""

    quotas: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes by tier and tenant."""

    others: dict[Path, Any] = field(default_factory=dict)
    added: list[tuple[int, TierSettings]] = field(default_factory=list)
    """New tiers, and the position of each."""

    removed: list[str] = field(default_factory=list)
    restart: list[Path] = field(default_factory=list)
    """Places of changes that need a restart."""

    def words(self) -> str:
        """Return the changes for the log."""
        tiers = [
            f"tiers.{name}.{key}: {_shown(value)}"
            for name, settings in self.tiers.items()
            for key, value in settings.items()
        ]
        quotas = [
            f"tenants.{tenant}.quotas.{name}: {_shown(size)}"
            for name, sizes in self.quotas.items()
            for tenant, size in sizes.items()
        ]
        others = [f"{render(path)}: {_shown(value)}" for path, value in self.others.items()]
        added = [f"tier {tier.name} added" for _, tier in self.added]
        removed = [f"tier {name} removed" for name in self.removed]
        return ", ".join([*tiers, *quotas, *others, *added, *removed]) or "nothing"


def _shown(value: object) -> object:
    return exact_size(value) if isinstance(value, int) and not isinstance(value, bool) else value


@runtime_checkable
class LimitsRate(Protocol):
    """Peers that are served."""

    def limit_rate(self, rate: int | None) -> None:
        """Send at most *rate* bytes per second from now on; ``None``: any number."""
        ...


class ArrangesTiers(Protocol):
    """The administration of a cache, within a call."""

    def add(self, tier: Mapping[str, object], position: int | None = None) -> None:
        """See :meth:`hexkv.ports.Administration.attach`."""
        ...

    def remove(self, tier: str) -> bool:
        """See :meth:`hexkv.ports.Administration.detach`."""
        ...


class Adjusting:
    """Changes settings of one cache, all that belong together or none. Safe from any thread.

    Args:
        admin: of the cache.
        calls: of the cache; a change is one of them.
        stack: its tiers.
        opener: of tiers that come later.
    """

    def __init__(
        self, admin: ArrangesTiers, calls: Calls, stack: TierStack, opener: TierOpener
    ) -> None:
        # No circle: a cache that is dropped ends at once.
        self._admin: ArrangesTiers = proxy(admin)
        self._calls = calls
        self._stack = stack
        self._opener = opener
        self._loaded = opener.loaded
        self._lock = Lock()
        self._numbers = count(1)
        self._newest = 0

    def adjust(self, settings: Mapping[str, object]) -> None:
        """See :meth:`hexkv.ports.Administration.adjust`."""
        with self._lock:
            self._apply(_named(settings))

    def reread(self, read: Callable[[], Loaded]) -> None:
        """Apply a configuration that was changed; refuse it as a whole, in one line of the log.

        No effect if a later call has read it and is done: some files take long to read.

        Args:
            read: returns the present one.
        """
        number = next(self._numbers)
        try:
            found = read()
            check(found, self._opener.registry)
            with self._lock:
                if number < self._newest:
                    return
                changes = differences(self._loaded.settings, found.settings)
                if changes.restart:
                    places = ", ".join(map(found.locate, changes.restart))
                    raise ConfigError(f"needs a restart: {places}")
                self._apply(changes)
                self._loaded, self._newest = found, number
        except HexKVError as error:
            words = " ".join(str(error).split())
            log.warning("admin: SIGHUP: refused, the former configuration is kept: %s", words)
        else:
            log.warning("admin: SIGHUP: the configuration is read anew: %s", changes.words())

    def _apply(self, changes: Changes) -> None:
        with self._calls.call():
            self._change(changes)

    def _change(self, changes: Changes) -> None:
        stack = self._stack
        peers: object = stack.runtime.peers
        rules, limits = [], []
        for name in dict.fromkeys(chain(changes.tiers, changes.quotas)):
            (tier,) = stack.named([name])
            settings, quotas = changes.tiers.get(name, {}), changes.quotas.get(name, {})
            rules.append((tier, settings))
            if quotas or "budget" in settings:
                limits.append((tier, self._budget(tier, settings, quotas), quotas))
        going = stack.named(changes.removed)
        if not changes.added and len(going) == len(stack.tiers):
            raise InvalidRequest("no tier would be left")
        if ("peers", "serve", "rate") in changes.others and not isinstance(peers, LimitsRate):
            raise InvalidRequest("peers.serve.rate: no peers are served")
        with ExitStack() as undoing:
            for position, added in changes.added:
                section = {key: getattr(added, key) for key in added.model_fields_set}
                self._admin.add(section, min(position, len(stack.tiers)))
                undoing.callback(self._admin.remove, added.name)
            # Stores may refuse a larger budget, and evicted chunks do not come back.
            for tier, budget, quotas in sorted(limits, key=lambda one: _growth(*one[:2]))[::-1]:
                former, shares = tier.index.budget or budget, tier.index.quotas()
                stack.limit(tier, budget, quotas)
                undoing.callback(stack.limit, tier, former, shares)
            undoing.pop_all()
        for tier, settings in rules:
            self._change_rules(tier, settings)
        for path, value in changes.others.items():
            _OTHERS[path](self._stack, value)
        for name in changes.removed:
            self._admin.remove(name)

    def _budget(self, tier: Tier, settings: Mapping[str, Any], quotas: Mapping[str, int]) -> int:
        """Return the budget of a tier, as wanted or as it is, after checking it."""
        budget = cast("int | None", settings.get("budget", tier.index.budget)) or 0
        if "budget" in settings:
            where = f"tiers.{tier.name}.budget"
            if not budget:
                raise ConfigError(f"{where}: becomes null by a restart only")
            if tier.lends and not tier.own_memory:
                budget = min(budget, self._opener.most)
            if budget < (self._opener.block or 0):
                raise ConfigError(f"{where}: does not hold one chunk of {self._opener.block} bytes")
        check_limit(tier, budget, quotas)
        return budget

    def _change_rules(self, tier: Tier, settings: Mapping[str, Any]) -> None:
        rules = changed_rules(
            tier.rules,
            reads=settings.get("read"),
            writes=settings.get("write"),
            promotes=settings.get("promote"),
        )
        others = {key: settings[key] for key in ("min_reuse", "retries") if key in settings}
        if (changed := replace(rules, **others)) != tier.rules:
            self._stack.change_rules(tier, changed)


def _growth(tier: Tier, budget: int) -> int:
    return budget - (tier.index.budget or 0)


def _rate_of_peers(stack: TierStack, rate: int | None) -> None:
    peers: object = stack.runtime.peers
    if isinstance(peers, LimitsRate):
        peers.limit_rate(rate)


_OTHERS: Mapping[Path, Callable[[TierStack, Any], None]] = {
    ("peers", "serve", "rate"): _rate_of_peers,
    ("compute_rate",): lambda stack, rate: stack.runtime.computing.configure(rate),
    ("log", "level"): lambda _, level: logs.configure(level or "info"),
    ("log", "format"): lambda _, form: logs.configure("", form or "text"),
}


def differences(former: EngineSettings, found: EngineSettings) -> Changes:
    """Return the changes from one configuration to another."""
    changes = Changes()
    for path, value in _differing(former, found):
        if path in OTHERS:
            changes.others[path] = value
        elif path == ("tiers",):
            _compare_tiers(former.tiers, found.tiers, changes)
        elif path == ("tenants",):
            _compare_tenants(former.tenants, found.tenants, changes)
        else:
            changes.restart.append(path)
    return changes


def _differing(former: Section, found: Section, at: Path = ()) -> list[tuple[Path, Any]]:
    """Return the places of two sections that differ, with the values of the second."""
    places: list[tuple[Path, Any]] = []
    for name in type(found).model_fields:
        before, now, place = getattr(former, name), getattr(found, name), (*at, name)
        if isinstance(now, Section):
            places += _differing(before, now, place)
        elif before != now:
            places.append((place, now))
    return places


def _compare_tiers(
    former: Sequence[TierSettings], found: Sequence[TierSettings], changes: Changes
) -> None:
    before, now = ({tier.name: tier for tier in tiers} for tiers in (former, found))
    changes.removed = [name for name in before if name not in now]
    if [name for name in before if name in now] != [name for name in now if name in before]:
        changes.restart.append(("tiers",))
    for index, (name, tier) in enumerate(now.items()):
        if name not in before:
            changes.added.append((index, tier))
            continue
        for path, value in _differing(before[name], tier):
            if path == ("budget",) and value is None:
                changes.restart.append(("tiers", index, "budget"))
            elif path[0] in OF_A_TIER:
                changes.tiers.setdefault(name, {})[str(path[0])] = value
            else:
                changes.restart.append(("tiers", index, *path))


def _compare_tenants(
    former: Sequence[TenantSettings], found: Sequence[TenantSettings], changes: Changes
) -> None:
    if [(one.name, one.salt) for one in former] != [(one.name, one.salt) for one in found]:
        changes.restart.append(("tenants",))
        return
    for index, (before, now) in enumerate(zip(former, found, strict=True)):
        if before.quotas.keys() != now.quotas.keys():
            changes.restart.append(("tenants", index, "quotas"))
        for tier, size in now.quotas.items():
            if before.quotas.get(tier, size) != size:
                changes.quotas.setdefault(tier, {})[now.name] = size


def _named(settings: Mapping[str, object]) -> Changes:
    """Return the changes that *settings* describe; see ``Administration.adjust``.

    Raises:
        ConfigError: one of them is unknown, invalid, or needs a restart.
    """
    changes = Changes()
    for path, value in _leaves(settings):
        match path:
            case ("tiers", str() as name, str() as key) if key in OF_A_TIER:
                tier = {"store": name, "write": "evicted"}
                changes.tiers.setdefault(name, {})[key] = _checked(TierSettings, tier, path, value)
            case ("tenants", str() as tenant, "quotas", str() as tier):
                size = _checked(Serving, {}, path, value, "bytes")
                changes.quotas.setdefault(tier, {})[tenant] = size
            case _ if path in OTHERS:
                changes.others[path] = _checked(OTHERS[path], {}, path, value)
            case _:
                known = ", ".join([*(f"tiers.NAME.{key}" for key in OF_A_TIER), *_KNOWN])
                raise ConfigError(f"{render(path)}: needs a restart, or is unknown; known: {known}")
    return changes


_KNOWN = ["tenants.NAME.quotas.TIER", *map(render, OTHERS)]


def _leaves(value: object, path: Path = ()) -> list[tuple[Path, object]]:
    if isinstance(value, Mapping):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*path, key))]
    return [(path, value)]


def _checked(
    section: type[Section], base: Mapping[str, object], path: Path, value: object, key: str = ""
) -> Any:
    """Return the value at *path*, as *section* reads it: as its *key*, by default the path's last.

    Raises:
        ConfigError: it is invalid.
    """
    key = key or str(path[-1])
    try:
        return getattr(section.model_validate({**base, key: value}), key)
    except ValidationError as error:
        raise ConfigError("; ".join(explain(error, lambda _: render(path), lambda _: []))) from None
