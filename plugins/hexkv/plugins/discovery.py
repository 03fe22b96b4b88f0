"""Finding plugins: every installed entry point of the group ``hexkv``.

A broken plugin is recorded in :attr:`Registry.broken`, offers nothing, and stops nobody.
Two plugins that claim one name are an error instead: which of them wins must not depend on
the order in which they were found. Nothing heavy is imported: a plugin module describes
adapters and imports what they need when one is opened.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from typing import TypeVar

import pluggy

from hexkv.plugins import builtin
from hexkv.plugins.registry import Origin, Registry
from hexkv.plugins.spec import AdapterSpec, CommandSpec, Hooks
from hexkv.ports import ConfigError

GROUP = "hexkv"

_Spec = TypeVar("_Spec", AdapterSpec, CommandSpec)


def discover(*, group: str = GROUP) -> Registry:
    """What the installed plugins offer.

    Raises:
        ConfigError: two plugins have one name, or offer one thing under the same name.
    """
    registry = Registry()
    _take(registry, Origin("builtin", _distribution("hexkv")), builtin)
    for origin, entry in _entries(group):
        try:
            plugin = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
            registry.broken[origin] = error
        else:
            _take(registry, origin, plugin)
    return registry


def _entries(group: str) -> list[tuple[Origin, importlib.metadata.EntryPoint]]:
    """The entry points by name, so that the order of ``sys.path`` changes nothing."""
    found: dict[str, tuple[Origin, importlib.metadata.EntryPoint]] = {}
    for entry in importlib.metadata.entry_points(group=group):
        label = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
        origin = Origin(entry.name, label)
        if entry.name in found:
            first = found[entry.name][0]
            raise ConfigError(f"two plugins are called {entry.name!r}: {first} and {origin}")
        found[entry.name] = origin, entry
    return [found[name] for name in sorted(found)]


def _take(registry: Registry, origin: Origin, plugin: object) -> None:
    """Ask one plugin what it offers: everything of it is taken in, or nothing."""
    try:
        adapters, commands = _ask(plugin)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
        registry.broken[origin] = error
    else:
        registry.offer(origin, adapters, commands)


def _ask(plugin: object) -> tuple[list[AdapterSpec], list[CommandSpec]]:
    # A plugin manager for each plugin: a shared one stops at the first hook that raises.
    manager = pluggy.PluginManager("hexkv")
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    for hook in manager.get_hookcallers(plugin) or ():
        if not hook.has_spec():
            raise AttributeError(f"there is no hook {hook.name!r}")
    return (
        _flat(manager.hook.hexkv_adapters(), AdapterSpec),
        _flat(manager.hook.hexkv_commands(), CommandSpec),
    )


def _flat(offers: Iterable[Iterable[object]], wanted: type[_Spec]) -> list[_Spec]:
    """All offers in one list, each what the hook promised."""
    found: list[_Spec] = []
    for offer in offers:
        for spec in offer:
            if not isinstance(spec, wanted):
                raise TypeError(f"offers a {type(spec).__name__}, not a {wanted.__name__}")
            found.append(spec)
    return found


def _distribution(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return name
