"""Bytes and times as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}B": base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for suffix, base in (("", 1000), ("i", 1024))
}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGTP]?i?B)?", re.ASCII)


def parse_size(value: object) -> object:
    """Return the bytes in *value*: a whole number, or a text such as ``8GiB`` or ``1.5 MB``.

    KB is 1000 bytes and KiB 1024. A value that is no text is returned unchanged, to be checked
    later.

    Raises:
        ValueError: a text that is no size, or not a whole number of bytes.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or (match[2] or "") not in _UNITS:
        raise ValueError(f"{value!r} is no size: write a number of bytes, or 512MiB, 8GiB, 1.5TB")
    whole, _, fraction = match[1].partition(".")
    size, rest = divmod(int(whole + fraction) * _UNITS[match[2] or ""], 10 ** len(fraction))
    if rest:
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return size


def exact_size(size: int) -> str | int:
    """Return *size* bytes as people write them, such as ``22GiB``; a number if no unit is exact."""
    for unit, factor in sorted(_UNITS.items(), key=lambda item: -item[1]):
        if factor > 1 and size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return size


_TIMES = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s|min|h|d)", re.ASCII)


def parse_time(value: object) -> object:
    """Return the seconds in *value*: a number, or a text such as ``10s``, ``200ms`` or ``2min``.

    A value that is no text is returned unchanged, to be checked later.

    Raises:
        ValueError: a text that is no time with a unit.
    """
    if not isinstance(value, str):
        return value
    match = _TIME.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is no time: write a number of seconds, or 200ms, 10s, 2min")
    return float(match[1]) * _TIMES[match[2]]


def human_size(size: int) -> str:
    """Return *size* bytes with a binary unit and three figures: ``31.9 MiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            figures = ".0f" if value >= 100 else ".3g"
            return f"{size} B" if unit == "B" else f"{value:{figures}} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
