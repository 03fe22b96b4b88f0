"""hexkv for SGLang with a clock on every hook. Named in place of hexkv's own classes.

Each call adds a line to the file that the environment names: when it began and ended, by the
clock that all processes of a machine share, in seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from threading import local
from types import FunctionType
from typing import TypeVar

from hexkv.adapters.sglang.hicache import HexKVStorage
from hexkv.adapters.sglang.linker import HexKVLinker

FILE = "HOOK_TIMES"
"""The variable with the name of the file."""

_Class = TypeVar("_Class", bound=type)
_here = local()


def _timed(hook: Callable[..., object], file: int) -> Callable[..., object]:
    @wraps(hook)
    def timed(*args: object, **named: object) -> object:
        if getattr(_here, "inside", False):  # a hook that calls another one
            return hook(*args, **named)
        _here.inside, began = True, time.perf_counter()
        try:
            return hook(*args, **named)
        finally:
            _here.inside = False
            os.write(file, f"{began} {time.perf_counter()}\n".encode())

    return timed


def _with_clock(hooked: _Class) -> _Class:
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for name, hook in list(vars(hooked.__mro__[1]).items()):
        if isinstance(hook, FunctionType) and not name.startswith("_"):
            setattr(hooked, name, _timed(hook, file))
    return hooked


@_with_clock
class Storage(HexKVStorage):
    """Behind SGLang's hierarchical cache."""


@_with_clock
class Linker(HexKVLinker):
    """In its place."""
