"""Explanations of a wrong configuration: the key, its origin, and the nearest known key."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from hexkv.plugins.configuration.places import Locate, Path, unknown
from hexkv.plugins.spec import SettingError


def explain(
    error: ValidationError, locate: Locate, known: Callable[[Path], Sequence[str]]
) -> list[str]:
    """Return one message per mistake.

    Args:
        error: from pydantic.
        locate: names a place.
        known: the keys that a section, given by its path, may have.
    """
    found = error.errors(include_url=False, include_input=False)
    places = [_place(item["loc"]) for item in found]
    messages = []
    for item, path in zip(found, places, strict=True):
        if any(len(place) > len(path) and place[: len(path)] == path for place in places):
            continue  # only about an error inside, which has its own message
        kind = item["type"]
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            messages.append(unknown(path, known(path[:-1]), locate))
        elif kind == "value_error":
            wrong = item["ctx"]["error"]
            at = (*path, wrong.setting) if isinstance(wrong, SettingError) else path
            messages.append(f"{locate(at)}: {wrong}")
        elif kind == "missing":
            messages.append(f"{locate(path)}: missing: there is no default")
        elif kind != "default_factory_not_called":
            text = _PLAIN.get(kind) or item["msg"].removeprefix("Input ")
            if kind in _SECTIONS:
                text += f": {', '.join(known(path))}" if known(path) else ""
            elif kind == "literal_error" and "'off'" in text:
                text += " (in quotes: YAML takes on and off for true and false)"
            messages.append(f"{locate(path)}: {text}")
    return messages


def _place(path: Path) -> Path:
    """Return *path* without the alternative of a type that pydantic adds to its end."""
    while path and _ALTERNATIVE.fullmatch(str(path[-1])):
        path = path[:-1]
    return path


_ALTERNATIVE = re.compile(r"str|int|float|bool|(?:tuple|list|dict|constrained|function-).*\[.*\]")

_SECTIONS = frozenset({"model_type", "dataclass_type", "model_attributes_type"})
_LIST = "should be a list: lines that begin with '- ' below it, or [...]"
_PLAIN = dict.fromkeys(_SECTIONS, "should be a section, with some of its keys below it") | {
    "list_type": _LIST,
    "tuple_type": _LIST,
    "too_short": "should have at least one item: a line that begins with '- ' below it",
    "dict_type": "should be a section: NAME: VALUE below it",
    "bool_type": "should be true or false",
    "int_type": "should be a whole number, without quotes",
    "float_type": "should be a number, without quotes",
    "string_type": "should be a text (in quotes, if it looks like a number)",
}
"""Pydantic's kinds of mistakes, in the words of the file."""
