"""Locks that tell when somebody gives way while holding one, as a store works or a caller waits.

Everybody runs on one thread, one at a time, and gives way only where a real thread would
block. So a lock of the core is never held at such a moment, or a store would hold up all.
"""

import sys
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from greenlet import getcurrent

_holders = {}
"""How many locks each greenlet holds."""


class Held(AssertionError):
    """Somebody waits for a lock whose holder waits, too."""


class WatchedLock:
    """What the core takes for ``threading.Lock``."""

    def __init__(self):
        self._taken = False

    def __enter__(self):
        if self._taken:
            raise Held("a lock is held by somebody who gave way")
        self._taken = True
        me = getcurrent()
        _holders[me] = _holders.get(me, 0) + 1

    def __exit__(self, *_):
        self._taken = False
        me = getcurrent()
        _holders[me] -= 1
        if not _holders[me]:
            del _holders[me]


class OfGreenlets:
    """What an engine's door takes for ``threading.local``: each greenlet stands for a thread."""

    def __init__(self):
        vars(self)["_of"] = WeakKeyDictionary()

    def __getattr__(self, name):
        try:
            return self._of[getcurrent()][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self._of.setdefault(getcurrent(), {})[name] = value


def holds_one():
    """Whether who runs now holds a lock."""
    return getcurrent() in _holders


@contextmanager
def watching():
    """Whatever of the core is made meanwhile has locks that are watched."""
    _holders.clear()
    patched = [
        (module, module.Lock)
        for name, module in list(sys.modules.items())
        if name.startswith("hexkv.core.") and hasattr(module, "Lock")
    ]
    for module, _ in patched:
        module.Lock = WatchedLock
    try:
        yield
    finally:
        for module, real in patched:
            module.Lock = real
