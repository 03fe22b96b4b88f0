"""A bar for terminals."""

from __future__ import annotations

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, most: float, width: int) -> str:
    """Return *value* as a bar, where *most* would be *width* characters; finer than a character."""
    eighths = round(value / most * width * 8) if most > 0 else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
