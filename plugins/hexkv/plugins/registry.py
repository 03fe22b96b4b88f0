"""The adapters and commands that were found, and how one of them is built."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hexkv.plugins.distributions import distribution_of
from hexkv.plugins.places import Locate, suggestion
from hexkv.plugins.spec import AdapterSpec, CommandSpec, Kind, OpenContext
from hexkv.ports import (
    AdapterUnavailable,
    ChunkStore,
    ConfigError,
    HashFunction,
    MemoryProvider,
    Policy,
    Serde,
)

_PORTS: Mapping[Kind, type] = {
    "store": ChunkStore,
    "memory": MemoryProvider,
    "policy": Policy,
    "serde": Serde,
    "checksum": HashFunction,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Who offers something."""

    plugin: str
    """Name of the entry point."""

    distribution: str
    """What to ``pip uninstall``, with its version; empty where nobody knows."""

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution})" if self.distribution else self.plugin


class Registry:
    """Adapters by kind and name, commands by name, and the plugins that are broken.

    A value that whoever needs it creates and passes on: two registries do not know each
    other, and there is no registry of the process.
    """

    def __init__(self) -> None:
        self.adapters: dict[tuple[Kind, str], AdapterSpec] = {}
        self.commands: dict[str, CommandSpec] = {}
        self.origin: dict[tuple[Kind | Literal["command"], str], Origin] = {}
        self.broken: dict[Origin, BaseException] = {}

    def offer(
        self,
        origin: Origin,
        adapters: Iterable[AdapterSpec] = (),
        commands: Iterable[CommandSpec] = (),
    ) -> None:
        """Take in what the plugin *origin* offers.

        Raises:
            ConfigError: something of the same kind and name is offered already.
        """
        for adapter in adapters:
            self._claim(adapter.kind, adapter.name, origin)
            self.adapters[adapter.kind, adapter.name] = adapter
        for command in commands:
            self._claim("command", command.name, origin)
            self.commands[command.name] = command

    def names(self, kind: Kind) -> list[str]:
        """The adapters of one kind, sorted."""
        return sorted(name for found, name in self.adapters if found == kind)

    def find(self, kind: Kind, name: str) -> AdapterSpec:
        """The adapter that a configuration calls *name*.

        Raises:
            ConfigError: no installed plugin offers it.
        """
        if found := self.adapters.get((kind, name)):
            return found
        hint = suggestion(name, self.names(kind))
        if ours := distribution_of(kind, name):  # a near name would be the wrong one
            hint = f": pip install {ours}"
        raise ConfigError(f"no {kind} adapter {name!r}{hint}")

    def parse(
        self, kind: Kind, name: str, settings: Mapping[str, object], locate: Locate | None = None
    ) -> object:
        """The adapter's settings, checked against its dataclass; builds nothing.

        Args:
            kind: what the adapter is.
            name: what a configuration calls it.
            settings: values by field name, as read from a configuration.
            locate: gives the full path of a setting and where it came from, for messages.

        Raises:
            ConfigError: no such adapter, an unknown setting, or a bad value.
        """
        from hexkv.plugins.settings import parse_settings  # pydantic is slow to import

        return parse_settings(self.find(kind, name), settings, locate)

    def open(
        self,
        kind: Kind,
        name: str,
        settings: Mapping[str, object],
        context: OpenContext,
    ) -> Any:
        """Build an adapter; arguments as for :meth:`parse`. Gives what the kind's port asks for.

        Raises:
            ConfigError: as :meth:`parse`; or what was built does not have the port's methods.
            AdapterUnavailable: it requires something that cannot be imported here.
        """
        parsed = self.parse(kind, name, settings)
        spec = self.find(kind, name)
        require(spec)
        built = spec.open(parsed, context)
        port = _PORTS.get(kind)
        if port is not None and not isinstance(built, port):
            raise ConfigError(
                f"{kind} adapter {name!r} of {self.origin[kind, name]} built a"
                f" {type(built).__name__}, which is no {port.__name__}"
            )
        return built

    def _claim(self, kind: Kind | Literal["command"], name: str, origin: Origin) -> None:
        if (taken := self.origin.get((kind, name))) is not None:
            what = kind if kind == "command" else f"{kind} adapter"
            raise ConfigError(f"{what} {name!r} is offered twice: by {taken} and by {origin}")
        self.origin[kind, name] = origin


def missing(spec: AdapterSpec | CommandSpec) -> tuple[str, ...]:
    """The modules that *spec* requires and that this machine lacks. Imports none of them."""
    return tuple(name for name in spec.requires if not _importable(name))


def require(spec: AdapterSpec | CommandSpec) -> None:
    """Nothing, where everything that *spec* requires can be imported.

    Raises:
        AdapterUnavailable: something is missing; says what, and what to do.
    """
    if lacking := missing(spec):
        raise AdapterUnavailable(spec.name, f"needs {', '.join(lacking)}", spec.hint)


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around a dotted name is missing
        return False
