"""Places in a configuration, as messages name them, and messages about unknown words."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

Path = tuple[str | int, ...]
"""A place in a configuration: ``("tiers", 1, "store")`` is written ``tiers[1].store``."""

Locate = Callable[[Path], str]
"""Returns the name of a place as the user knows it, and the origin of its value."""


def render(path: Path) -> str:
    """Return a path in the form of messages and tables."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "configuration"


def unknown(path: Path, known: Sequence[str], locate: Locate) -> str:
    """Return the message about an unknown key."""
    return f"{locate(path)}: unknown key{suggestion(str(path[-1]), known, noun='known')}"


def suggestion(word: str, known: Sequence[str], *, noun: str = "installed") -> str:
    """Return the end of a message about an unknown *word*: the nearest known one, and all."""
    near = difflib.get_close_matches(word, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    return f"{hint} {noun}: {', '.join(known) or 'none'}"
