"""An adapter's settings, read strictly from the dataclass that its spec names."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from hexkv.plugins.configuration.places import Locate, Path, unknown
from hexkv.plugins.configuration.problems import explain
from hexkv.plugins.configuration.sources import Schema, Unread, keys_at, parse_yaml
from hexkv.plugins.configuration.values import faults
from hexkv.plugins.spec import AdapterSpec
from hexkv.ports import ConfigError

log = logging.getLogger(__name__)


def parse_settings(
    spec: AdapterSpec, settings: Mapping[str, object], locate: Locate | None = None
) -> object:
    """Return an instance of ``spec.settings``.

    Strict as JSON is: no string passes for a number, but a list is a tuple and a string a path or
    the value of an enum, because YAML has no other way to write them.

    Raises:
        ConfigError: an unknown name (and the nearest known one), or a bad value.
    """
    names = [field.name for field in fields(spec.settings) if field.init]

    def place(path: Path) -> str:
        return locate(path) if locate else ".".join(map(str, (spec.name, *path)))

    settings, problems = _renamed(spec, settings, place)
    problems += [f"{place(path)}: {wrong}" for path, wrong in faults(settings)]
    if not problems:
        settings = read_texts(spec, settings)
        problems = [f"{place(path)}: {wrong}" for path, wrong in faults(settings)]
    if not problems:
        problems = [unknown((name,), names, place) for name in settings if name not in names]
    if not problems:
        try:
            return _reader(spec.settings).validate_json(json.dumps(settings), strict=True)
        except ValidationError as error:
            schema = json_schema(spec.settings)
            problems = explain(error, place, lambda at: keys_at(schema, [*map(str, at)]))
    raise ConfigError("; ".join(problems))


def _renamed(
    spec: AdapterSpec, settings: Mapping[str, object], place: Locate
) -> tuple[Mapping[str, object], list[str]]:
    """Return *settings* by their present names, and the mistakes found."""
    found, problems = dict(settings), []
    for former, name in spec.renamed.items():
        if former in found:
            if name in found:
                problems.append(f"{place((former,))}: is {name} now, which is given, too")
            found[name] = found.pop(former)
            _log_once(spec.name, former, name)
    return found, problems


@lru_cache(maxsize=128)
def _log_once(adapter: str, former: str, name: str) -> None:
    log.warning(
        "adapter %s: setting %s is %s now; the next release refuses it", adapter, former, name
    )


def read_texts(spec: AdapterSpec, settings: Mapping[str, object]) -> dict[str, object]:
    """Return *settings*; values of the environment and of options are parsed for their types.

    Raises:
        ConfigError: one is no YAML, and its type is not text.
    """

    def read(value: Any, words: tuple[str, ...]) -> Any:
        if isinstance(value, Unread):
            found = value.read(json_schema(spec.settings), words)
            return parse_yaml(value, value.origin)[0] if isinstance(found, Unread) else found
        if isinstance(value, Mapping):
            return {key: read(item, (*words, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [read(item, (*words, str(index))) for index, item in enumerate(value)]
        return value

    return {name: read(value, (name,)) for name, value in settings.items()}


class _Quiet(GenerateJsonSchema):
    def emit_warning(self, kind: object, detail: str) -> None:
        """Ignore warnings about defaults: only the types are used."""


@lru_cache(maxsize=128)
def json_schema(settings: type) -> Schema:
    """Return the JSON schema of a dataclass or a section; one of anything if it has none."""
    try:
        return _reader(settings).json_schema(schema_generator=_Quiet)
    except PydanticInvalidForJsonSchema:
        return {}


@lru_cache(maxsize=128)
def _reader(settings: type) -> TypeAdapter[object]:
    """Return pydantic's reader of a dataclass, which takes half a millisecond to make."""
    return TypeAdapter(settings)
