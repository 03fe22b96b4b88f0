"""The adapters and commands that were found, and the building of an adapter."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hexkv.plugins.configuration.places import Locate, suggestion
from hexkv.plugins.discovery.distributions import distribution_of
from hexkv.plugins.spec import AdapterSpec, CommandSpec, Kind, OpenContext
from hexkv.ports import (
    AdapterUnavailable,
    AdminAccess,
    ChunkService,
    ChunkStore,
    ConfigError,
    Directory,
    HashFunction,
    HexKVError,
    MemoryProvider,
    Observer,
    Policy,
    Serde,
    TransferChannel,
)
from hexkv.ports.runtime.contract import unkept

log = logging.getLogger(__name__)

_PORTS: Mapping[Kind, type] = {
    "store": ChunkStore,
    "memory": MemoryProvider,
    "policy": Policy,
    "serde": Serde,
    "checksum": HashFunction,
    "node": ChunkService,
    "directory": Directory,
    "admin": AdminAccess,
    "observe": Observer,
    "channel": TransferChannel,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The plugin that offers something."""

    plugin: str
    """Name of the entry point."""

    distribution: str
    """The package to ``pip uninstall``, with its version; empty if it is not known."""

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution})" if self.distribution else self.plugin


class Registry:
    """Adapters by kind and name, commands by name, and the plugins that are broken.

    A value that its user creates and passes on: two registries do not know each other, and there is
    no registry of the process.
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
        """Register the offers of plugin *origin*: all of them, or none.

        Raises:
            ConfigError: something of the same kind and name is offered already.
        """
        adapters, commands = list(adapters), list(commands)
        new: dict[tuple[Kind | Literal["command"], str], Origin] = {}
        specs: list[AdapterSpec | CommandSpec] = [*adapters, *commands]
        for spec in specs:
            kind = spec.kind if isinstance(spec, AdapterSpec) else "command"
            if taken := (self.origin | new).get((kind, spec.name)):
                what = "command" if kind == "command" else f"{kind} adapter"
                raise ConfigError(
                    f"{what} {spec.name!r} is offered twice: by {taken} and by {origin}"
                )
            new[kind, spec.name] = origin
        self.origin |= new
        self.adapters |= {(adapter.kind, adapter.name): adapter for adapter in adapters}
        self.commands |= {command.name: command for command in commands}

    def names(self, kind: Kind) -> list[str]:
        """Return the names of the adapters of one kind, sorted."""
        return sorted(name for found, name in self.adapters if found == kind)

    def find(self, kind: Kind, name: str) -> AdapterSpec:
        """Return the adapter that a configuration calls *name*.

        Raises:
            ConfigError: no installed plugin offers it; the message lists broken plugins that might.
        """
        if found := self.adapters.get((kind, name)):
            return found
        hint = suggestion(name, self.names(kind))
        if provider := distribution_of(kind, name):  # a near name would be the wrong one
            hint = f": pip install {provider}"
        raise ConfigError(f"no {kind} adapter {name!r}{hint}{self.said_of_broken()}")

    def said_of_broken(self) -> str:
        """Return the end of a message: the broken plugins, which might offer it; or nothing."""
        broken = [f"{origin}: {words(error)}" for origin, error in self.broken.items()]
        return f"; broken plugins: {', '.join(broken)}" if broken else ""

    def parse(
        self, kind: Kind, name: str, settings: Mapping[str, object], locate: Locate | None = None
    ) -> object:
        """Return the adapter's settings, checked against its dataclass; builds nothing.

        Args:
            kind: of the adapter.
            name: of the adapter in a configuration.
            settings: values by field name, as read from a configuration.
            locate: returns the full path of a setting and its origin, for messages.

        Raises:
            ConfigError: no such adapter, an unknown setting, or a bad value.
        """
        from hexkv.plugins.configuration.settings import (
            parse_settings,  # pydantic is slow to import
        )

        return parse_settings(self.find(kind, name), settings, locate)

    def open(
        self,
        kind: Kind,
        name: str,
        settings: Mapping[str, object],
        context: OpenContext,
    ) -> Any:
        """Build an adapter; arguments as for :meth:`parse`. Return an object of the kind's port.

        Raises:
            ConfigError: as :meth:`parse`; or it raised an error that is not hexkv's; or the object
                does not have the port's methods.
            AdapterUnavailable: it requires something that cannot be imported here, or was written
                for contracts that this hexkv does not keep.
            StoreError: of a store: it cannot be opened.
        """
        parsed = self.parse(kind, name, settings)
        spec = self.find(kind, name)
        require(spec)
        what = f"{kind} adapter {name!r} of {self.origin[kind, name]}"
        try:
            built = spec.open(parsed, context)
        except HexKVError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{what} cannot be opened: {words(error)}") from error
        port = _PORTS.get(kind, object)
        if isinstance(built, type):
            raise ConfigError(f"{what} built the class {built.__name__}, not an instance of it")
        if not isinstance(built, port):
            lacks = _lacking(built, port)
            more = f": it lacks {', '.join(lacks)}" if lacks else ""
            raise ConfigError(
                f"{what} built a {type(built).__name__}, which is no {port.__name__}{more}"
            )
        return built

    def open_all(
        self,
        kind: Kind,
        context: OpenContext,
        without: Collection[str] = (),
        checked: Callable[[Any], Any] = lambda built: built,
    ) -> Iterator[tuple[str, Any]]:
        """Yield every adapter of a kind that opens with defaults, by name.

        For adapters that are not configured: one that cannot be opened is left out and logged,
        unless it only lacks a module.

        Args:
            kind: of the adapters.
            context: for each of them.
            without: names of those that are not wanted.
            checked: takes each of them; may refuse it with an error of hexkv's.
        """
        for name in self.names(kind):
            if name in without or missing(self.find(kind, name)):
                continue
            try:
                built = checked(self.open(kind, name, {}, context))
            except HexKVError as error:
                log.warning("%s adapter %s is left out: %s", kind, name, error)
            else:
                yield name, built


def words(error: BaseException) -> str:
    """Return a third party's error for people, in one line, even if its own text fails."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a third party's class
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _lacking(built: object, port: type) -> list[str]:
    """Return the members of *port*, a protocol, that *built* does not have."""
    named = {name for base in port.__mro__ if base is not object for name in vars(base)}
    return sorted(
        name for name in named if not name.startswith("_") and getattr(built, name, None) is None
    )


def missing(spec: AdapterSpec | CommandSpec) -> tuple[str, ...]:
    """Return the modules that *spec* requires and this machine lacks. Imports none of them."""
    return tuple(name for name in spec.requires if not _importable(name))


def require(spec: AdapterSpec | CommandSpec) -> None:
    """Check that the requirements of *spec* can be imported, and its contracts are kept.

    Raises:
        AdapterUnavailable: something is missing; the message names it and the remedy.
    """
    if why := unfit(spec):
        raise AdapterUnavailable(spec.name, why, spec.hint)


def unfit(spec: AdapterSpec | CommandSpec) -> str:
    """Return why *spec* cannot be used here, in a few words; empty if it can."""
    if isinstance(spec, AdapterSpec) and (why := unkept(spec.contract)):
        return why
    lacking = missing(spec)
    return f"needs {', '.join(lacking)}" if lacking else ""


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around a dotted name is missing
        return False
