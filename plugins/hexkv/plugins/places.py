"""Places in a configuration, as messages name them, and what to say about an unknown word."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

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


def suggestion(word: str, known: Sequence[str], *, noun: str = "installed") -> str:
    """How a message about an unknown *word* ends: the nearest known one, and all of them."""
    near = difflib.get_close_matches(word, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    return f"{hint} {noun}: {', '.join(known) or 'none'}"
