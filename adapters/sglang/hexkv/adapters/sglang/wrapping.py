"""Puts a function around a method of a class of another package, once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Plain = Callable[..., object]
_MARK = "hexkv_plain"


def wrap(module: str, name: str, method: str, around: Callable[[Plain], Plain]) -> bool:
    """Put ``around(method)`` in the place of a method, once. True if it is there.

    Args:
        module: that defines the class, if it was imported.
        name: of the class.
        method: that the class defines itself.
        around: makes the new method of the old one.
    """
    owner = getattr(sys.modules.get(module), name, None)
    plain = vars(owner).get(method) if owner is not None else None
    if plain is None:
        return False
    if not hasattr(plain, _MARK):
        static = isinstance(plain, staticmethod)
        wrapped: Any = staticmethod(around(plain.__func__)) if static else around(plain)
        setattr(wrapped, _MARK, plain)
        setattr(owner, method, wrapped)
    return True
