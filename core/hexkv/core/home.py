"""Home: the process in which an engine was opened, and which alone may use it.

A forked child has copies of its parent's locks, as they were at that moment and held by threads
that it does not have, and shares the parent's files, connections and memory. So what is the
parent's is refused in the child before any lock is taken, and given back by the parent alone.
"""

from __future__ import annotations

from functools import cache, partial
from os import register_at_fork

from hexkv.ports import EngineClosed

forks: list[None] = []
"""One for each fork between the first process and this one. Asking the system for the process's
number costs more than the rest of a call's beginning."""


class Home:
    """The process in which this was made."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        _watch()
        self._forks = len(forks)

    @property
    def left(self) -> bool:
        """True in a child that was forked since."""
        return len(forks) != self._forks

    def check(self) -> None:
        """Refuse what is another process's.

        Raises:
            EngineClosed: this is a forked child.
        """
        if len(forks) != self._forks:
            raise EngineClosed(
                "the engine belongs to the process that this one was forked from: open an engine "
                "in the child, after the fork; leave the parent's alone, which ends with the parent"
            )


@cache
def _watch() -> None:
    register_at_fork(after_in_child=partial(forks.append, None))
