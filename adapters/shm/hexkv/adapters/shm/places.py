"""Addresses of Unix sockets as settings and peers write them. Imports no socket."""

from __future__ import annotations

_MOST = 107
"""Bytes of the address of a Unix socket."""


def path_of(text: str) -> str:
    """Return the path of *text*: a file's, or ``@name`` for an abstract one.

    Raises:
        ValueError: it is neither, or too long.
    """
    if "\0" in text or len(text) < 2 or not text.startswith(("/", "@")):
        raise ValueError(f"{text!r} is no address: write /path or @name")
    if len(text.encode()) > _MOST:
        raise ValueError(f"{text!r} is longer than an address of {_MOST} bytes")
    return "\0" + text[1:] if text.startswith("@") else text
