"""Home: the process in which an engine was opened, and which alone may use it.

A forked child has copies of its parent's locks, as they were at that moment and held by threads
that it does not have, and shares the parent's files, connections and memory. So the parent's
resources are refused in the child before any lock is taken, and released by the parent alone.
"""

from __future__ import annotations

from functools import cache
from os import register_at_fork
from weakref import WeakSet

from hexkv.ports import EngineClosed

_homes: WeakSet[Home] = WeakSet()
"""All homes, each marked on a fork. Asking the system for the process's number costs more than the
rest of a call's beginning."""


class Home:
    """The process in which this was created."""

    __slots__ = ("__weakref__", "left")

    def __init__(self) -> None:
        _watch()
        self.left = False
        """True in a child that was forked since."""

        _homes.add(self)

    def check(self) -> None:
        """Refuse the resources of another process.

        Raises:
            EngineClosed: this is a forked child.
        """
        if self.left:
            raise EngineClosed(
                "the engine belongs to the process that this one was forked from: open an engine "
                "in the child, after the fork; leave the parent's alone, which ends with the parent"
            )


@cache
def _watch() -> None:
    register_at_fork(after_in_child=_leave)


def _leave() -> None:
    for home in _homes:
        home.left = True
