"""The values that a configuration can hold: checked in one place, from any source."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from hexkv.plugins.configuration.places import Path

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Value: TypeAlias = "dict[str, Value] | list[Value] | str | int | float | bool | None"
"""The values of a configuration: those of JSON."""

DEEPEST = 32
"""Levels of a configuration; the schema has six, and an adapter's own settings few."""

_LARGEST = 2**64


def faults(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the places within *value* that no configuration can hold, and the fault of each.

    No value is repeated: it may be a secret.
    """
    if len(path) > DEEPEST:
        yield path, f"nested deeper than {DEEPEST} levels"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or (wrong := _wrong_text(key)):
                yield path, "a key must be a word"
            else:
                yield from faults(item, (*path, key))
    elif isinstance(value, str):
        if wrong := _wrong_text(value):
            yield path, wrong
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from faults(item, (*path, index))
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path, "should be a finite number"
    elif isinstance(value, int):
        if abs(value) > _LARGEST:
            yield path, "should be a number of at most 64 bits"
    elif value is not None:
        yield path, f"a configuration holds no {type(value).__name__}"


def _wrong_text(text: str) -> str:
    """Return the fault of a text that file systems, servers and JSON would not take unchanged."""
    if "\0" in text:
        return "has a NUL character"
    return "" if _encodable(text) else "has a character that UTF-8 does not (a lone surrogate)"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def at_home(path: str) -> str:
    """Return *path* with the home directory in place of a ``~`` at its beginning.

    Raises:
        ValueError: there is no such home directory.
    """
    if not path.startswith("~"):
        return path
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise ValueError(f"{path!r}: no home directory is known for that; ./~ is a plain name")
    return found


class _AtHome:
    """Makes pydantic pass a text through :func:`at_home`."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(at_home, handler(source))


FilePath = Annotated[str, _AtHome()]
"""The type of every setting that may be the path of a file, a directory or a socket."""
