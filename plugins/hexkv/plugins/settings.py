"""An adapter's settings, read strictly from the dataclass that its spec names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache

from pydantic import TypeAdapter, ValidationError

from hexkv.plugins.places import Locate, Path, unknown
from hexkv.plugins.problems import explain
from hexkv.plugins.spec import AdapterSpec
from hexkv.plugins.values import faults
from hexkv.ports import ConfigError


def parse_settings(
    spec: AdapterSpec, settings: Mapping[str, object], locate: Locate | None = None
) -> object:
    """An instance of ``spec.settings``.

    Strict as JSON is: no string passes for a number, but a list is a tuple and a string a
    path or the value of an enum, because YAML has no other way to write them.

    Raises:
        ConfigError: an unknown name (and the nearest known one), or a bad value.
    """
    names = [field.name for field in fields(spec.settings) if field.init]

    def place(path: Path) -> str:
        return locate(path) if locate else ".".join(map(str, (spec.name, *path)))

    problems = [f"{place(path)}: {wrong}" for path, wrong in faults(settings)]
    if not problems:
        problems = [unknown((name,), names, place) for name in settings if name not in names]
    if not problems:
        try:
            return _reader(spec.settings).validate_json(json.dumps(settings), strict=True)
        except ValidationError as error:
            problems = explain(error, place, lambda _: names)
    raise ConfigError("; ".join(problems))


@lru_cache(maxsize=128)
def _reader(settings: type) -> TypeAdapter[object]:
    """Pydantic's reader of a dataclass, which takes half a millisecond to make."""
    return TypeAdapter(settings)
