"""Finding plugins: every installed entry point of the group ``hexkv``.

A broken plugin is recorded in ``Registry.broken``, offers nothing, and does not stop others; so is
one that claims a name that is taken. hexkv's own distributions are registered first, then the
others by name: which plugin keeps a name does not depend on the order in which they were found.
Nothing heavy is imported: a plugin module describes adapters and imports their requirements when
one is opened.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import TypeVar

import pluggy

from hexkv.plugins.discovery import builtin
from hexkv.plugins.discovery.registry import Origin, Registry
from hexkv.plugins.spec import AdapterSpec, CommandSpec, Hooks
from hexkv.ports import ConfigError

GROUP = "hexkv"

_HOOKS = ("hexkv_adapters", "hexkv_commands")

_Spec = TypeVar("_Spec", AdapterSpec, CommandSpec)


def discover() -> Registry:
    """Return the offers of the installed plugins, and the broken plugins."""
    registry = Registry()
    _take(registry, Origin("builtin", _distribution("hexkv")), builtin)
    first: dict[str, Origin] = {}
    for origin, entry in _entries():
        holder = first.setdefault(origin.plugin, origin)
        if holder is not origin:
            registry.broken[origin] = ConfigError(
                f"two plugins are called {origin.plugin!r}: {holder} and {origin}"
            )
            continue
        try:
            plugin = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
            registry.broken[origin] = error
        else:
            _take(registry, origin, plugin)
    return registry


def _entries() -> tuple[tuple[Origin, importlib.metadata.EntryPoint], ...]:
    """Return the entry points in an order that does not depend on that of ``sys.path``."""
    # Reading every distribution's files takes most of a discovery, and each cache that is opened
    # discovers: they are read once for as long as no folder has got or lost a distribution.
    folders = tuple((folder, _state(folder)) for folder in sys.path)
    return _read_entries(folders, tuple(sys.meta_path))


def _state(folder: str) -> tuple[int, int, int]:
    """Return the identity of a folder, and when an entry was last made or removed in it."""
    try:
        found = os.stat(folder or ".")
    except OSError:
        return 0, 0, 0
    return found.st_dev, found.st_ino, found.st_mtime_ns


@lru_cache(maxsize=4)
def _read_entries(
    folders: tuple[tuple[str, tuple[int, int, int]], ...],  # noqa: ARG001 - part of the cache's key
    finders: tuple[object, ...],  # noqa: ARG001 - part of the cache's key
) -> tuple[tuple[Origin, importlib.metadata.EntryPoint], ...]:
    found = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        label = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
        found.append((Origin(entry.name, label), entry))
    found.sort(key=lambda one: (not _is_ours(one[0]), one[0].plugin, one[0].distribution))
    return tuple(found)


def _is_ours(origin: Origin) -> bool:
    return origin.distribution.startswith(("hexkv-", "hexkv_"))


def _take(registry: Registry, origin: Origin, plugin: object) -> None:
    """Register the offers of one plugin: all of them, or none."""
    try:
        adapters, commands = _ask(plugin)
        registry.offer(origin, adapters, commands)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
        registry.broken[origin] = error


def _ask(plugin: object) -> tuple[list[AdapterSpec], list[CommandSpec]]:
    # A plugin manager for each plugin: a shared one stops at the first hook that raises.
    manager = _Manager("hexkv")
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    implemented = {hook.name for hook in manager.get_hookcallers(plugin) or ()}
    for name in sorted(implemented.difference(_HOOKS)):
        raise AttributeError(f"there is no hook {name!r}; hooks: {', '.join(_HOOKS)}")
    for name in _HOOKS:
        if name not in implemented and callable(getattr(plugin, name, None)):
            raise AttributeError(f"{name} is no hook: write @hookimpl above it")
    if not implemented:
        raise AttributeError(f"it implements no hook; hooks: {', '.join(_HOOKS)}")
    if isinstance(plugin, type):
        for name in sorted(implemented):
            if inspect.signature(getattr(plugin, name)).parameters:
                raise TypeError(
                    f"{plugin.__name__} is a class, and {name} needs an instance of it: name one,"
                    " or make the hook a static method"
                )
    return (
        _offers(manager.hook.hexkv_adapters, AdapterSpec),
        _offers(manager.hook.hexkv_commands, CommandSpec),
    )


class _Manager(pluggy.PluginManager):
    """A manager that looks at functions alone: pluggy takes long for each name of a plugin."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if inspect.ismodule(plugin) and not inspect.isroutine(vars(plugin).get(name)):
            return None
        return super().parse_hookimpl_opts(plugin, name)

    def parse_hookspec_opts(
        self, module_or_class: ModuleType | type, name: str
    ) -> pluggy.HookspecOpts | None:
        if name.startswith("__"):
            return None
        return super().parse_hookspec_opts(module_or_class, name)


def _offers(hook: pluggy.HookCaller, wanted: type[_Spec]) -> list[_Spec]:
    """Return the hook's offers, each checked to be of the *wanted* type."""
    offers: list[Iterable[object]] = hook()
    if len(offers) < len(hook.get_hookimpls()):  # pluggy skips results that are None
        raise TypeError(f"{hook.name} gave None: return or yield each {wanted.__name__}")
    found: list[_Spec] = []
    for offer in offers:
        if not isinstance(offer, Iterable):
            raise TypeError(f"{hook.name} gave a {type(offer).__name__}, not a list of them")
        for spec in offer:
            if not isinstance(spec, wanted):
                raise TypeError(f"offers a {type(spec).__name__}, not a {wanted.__name__}")
            found.append(spec)
    return found


def _distribution(name: str) -> str:
    return f"{name} {installed_version(name)}".rstrip()


@lru_cache(maxsize=8)
def installed_version(name: str) -> str:
    """Return the version of a distribution; empty in a source tree that is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
