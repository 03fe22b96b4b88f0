"""How a wrong configuration is explained: which key, where it came from, what is nearest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import ValidationError

from hexkv.plugins.registry import suggestion

Path = tuple[str | int, ...]
"""A place in a configuration: ``("tiers", 1, "store")`` is written ``tiers[1].store``."""

Locate = Callable[[Path], str]
"""The name of a place as the user knows it, and where its value came from."""


def render(path: Path) -> str:
    """A path as messages and tables write it."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "configuration"


_RENAMED = {
    ("chunk", "bare"): "write chunk.seeded, its opposite: bare: true is seeded: false",
}
"""Keys of former versions, and what to write instead."""


def unknown(path: Path, known: Sequence[str], locate: Locate) -> str:
    """The message about a key that means nothing."""
    if path in _RENAMED:
        return f"{locate(path)}: renamed: {_RENAMED[path]}"
    return f"{locate(path)}: unknown key{suggestion(str(path[-1]), known, noun='known')}"


def explain(
    error: ValidationError, locate: Locate, known: Callable[[Path], Sequence[str]]
) -> list[str]:
    """One message per mistake.

    Args:
        error: what pydantic found.
        locate: names a place.
        known: the keys that a section, given by its path, may have.
    """
    found = error.errors(include_url=False, include_input=False)
    places = [item["loc"] for item in found]
    messages = []
    for item in found:
        path = item["loc"]
        if any(len(place) > len(path) and place[: len(path)] == path for place in places):
            continue  # only says that something inside is wrong, and that is told already
        kind = item["type"]
        if kind == "extra_forbidden":
            messages.append(unknown(path, known(path[:-1]), locate))
        elif kind == "value_error":
            messages.append(f"{locate(path)}: {item['ctx']['error']}")
        elif kind == "missing":
            messages.append(f"{locate(path)}: missing")
        elif kind != "default_factory_not_called":
            text = item["msg"].removeprefix("Input ")
            messages.append(f"{locate(path)}: {text}")
    return messages
