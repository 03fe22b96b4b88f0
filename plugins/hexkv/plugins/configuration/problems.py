"""Explanations of a wrong configuration: the key, its origin, and the nearest known key."""

from __future__ import annotations

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
    places = [item["loc"] for item in found]
    messages = []
    for item in found:
        path = item["loc"]
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
            messages.append(f"{locate(path)}: missing")
        elif kind != "default_factory_not_called":
            text = item["msg"].removeprefix("Input ")
            if kind == "literal_error" and "'off'" in text:
                text += " (in quotes: YAML takes on and off for true and false)"
            messages.append(f"{locate(path)}: {text}")
    return messages
