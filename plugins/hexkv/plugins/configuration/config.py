"""Reading a configuration: defaults < YAML file < environment ``HEXKV_*`` < code.

The only place that reads the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import get_args

from pydantic import ValidationError

from hexkv.plugins.configuration.brief import expand
from hexkv.plugins.configuration.places import Path, render
from hexkv.plugins.configuration.problems import explain
from hexkv.plugins.configuration.retired import replace_retired
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.plugins.configuration.section import Section
from hexkv.plugins.configuration.settings import json_schema
from hexkv.plugins.configuration.sources import (
    FILE_VARIABLE,
    ConfigLayers,
    Unread,
    merge_environment,
    merge_file,
    plain,
)
from hexkv.plugins.configuration.values import Value, at_home, faults
from hexkv.ports import ConfigError

DEFAULT = "default"
CODE = "code"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and the origin of each value in it."""

    settings: EngineSettings

    origins: Mapping[Path, str] = field(default_factory=lambda: {(): CODE})
    """``FILE:line``, ``env NAME``, ``code`` or the program's word for it, by place; a value
    that is not in it is a default."""

    file: str = ""
    """The YAML file; empty for none."""

    retired: Sequence[str] = ()
    """A line for each retired value that another one replaces."""

    def origin(self, path: Path) -> str:
        """Return the origin of the value at *path*."""
        return self.origins.get(path, DEFAULT)

    def locate(self, path: Path) -> str:
        """Return *path* as messages name it, with its origin, or that of its nearest parent."""
        return _locate(path, self.origins)


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    source: str = CODE,
    defaults: Mapping[str, object] | None = None,
    beside: Collection[str] = (),
    processes: int | None = None,
) -> Loaded:
    """Return the configuration that all layers together give.

    Args:
        path: a YAML file; otherwise the one that ``HEXKV_CONFIG`` names, if any.
        environ: in place of the process's environment.
        overrides: values of the program itself, as a nested mapping; the strongest layer.
        source: the name of *overrides* in messages, if a user wrote them somewhere.
        defaults: values that hold in the program where no layer sets one.
        beside: keys that the program takes out of *overrides*, for messages about unknown ones.
        processes: of a serving engine that load this, on this machine: each takes its part of
            ``gigabytes``, and by default of a quarter of the free memory, for the pool.

    Raises:
        ConfigError: an unknown key, a bad value, a file that cannot be read. The message names the
            key, the nearest known one, and the origin of the value.
    """
    environ = os.environ if environ is None else environ
    # Only the tiers: the environment may address one that no other layer mentions.
    tiers: list[Value] = [tier.model_dump(exclude_unset=True) for tier in EngineSettings().tiers]
    layers = ConfigLayers({"tiers": tiers, **plain(defaults or {}, CODE)})
    file = path if path is not None else environ.get(FILE_VARIABLE)
    if file is not None:
        merge_file(layers, _home(file))
    merge_environment(layers, environ, partial(json_schema, EngineSettings))
    layers.merge(plain(overrides or {}, source), lambda _: source)
    problems = expand(layers, processes)
    retired = replace_retired(layers)

    if layers.values.get("node") and not any(place[:1] == ("tiers",) for place in layers.origins):
        del layers.values["tiers"]  # these are defaults only: the node has its own

    def locate(place: Path) -> str:
        return _locate(place, layers.origins)

    problems += [f"{locate(place)}: {wrong}" for place, wrong in faults(layers.values)]
    if not problems:
        try:
            settings = EngineSettings.model_validate_json(json.dumps(layers.values))
            _keep_unread(settings, layers.values)
        except ValidationError as error:
            problems = explain(
                error, locate, lambda at: known_keys(at) if at else [*known_keys(at), *beside]
            )
    if problems:  # outside of pydantic's error, which holds the values
        raise ConfigError("; ".join(problems))
    return Loaded(settings, layers.origins, "" if file is None else str(file), retired)


def _home(file: str | os.PathLike[str]) -> FilePath:
    try:
        return FilePath(at_home(os.fspath(file)))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _keep_unread(node: object, value: Value) -> None:
    """Put the unread texts of *value* into *node*, the part of the settings made from it."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for part, item in parts:
            if isinstance(item, Unread):
                node[part] = item  # type: ignore[index] # one of an adapter's own settings
            elif isinstance(node, Section):
                _keep_unread(getattr(node, str(part)), item)
            elif isinstance(item, dict | list):
                _keep_unread(node[part], item)  # type: ignore[index] # as it is


def _locate(path: Path, origins: Mapping[Path, str]) -> str:
    for end in range(len(path), -1, -1):
        if origin := origins.get(path[:end]):
            return f"{render(path)} (from {origin})"
    mixed = any(place[: len(path)] == path for place in origins)
    return render(path) if mixed else f"{render(path)} ({DEFAULT})"


def known_keys(path: tuple[str | int, ...]) -> list[str]:
    """Return the keys of the section at *path*, which must be one of this schema."""
    section: type[Section] = EngineSettings
    for part in path:
        if isinstance(part, str):
            annotation = section.model_fields[part].annotation
            section = next(
                option
                for option in (annotation, *get_args(annotation))
                if isinstance(option, type) and issubclass(option, Section)
            )
    return list(section.model_fields)


def service_manager() -> tuple[str, float]:
    """Return the socket of the service manager, and the seconds of its watchdog.

    Empty, or 0: there is none. See sd_notify(3) and sd_watchdog_enabled(3).
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    watched = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    microseconds = os.environ.get("WATCHDOG_USEC", "") if watched else ""
    return address, int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0
