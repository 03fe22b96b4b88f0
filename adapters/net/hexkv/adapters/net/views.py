"""Buffers that are sent, or filled, one after another in few system calls."""

from __future__ import annotations

from collections.abc import Sequence

VIEWS = 512
"""Buffers that one system call takes, safely below IOV_MAX."""

_SENT = 4 << 20
"""Bytes after which a system call sends no further buffer: the capacity of a socket by Linux's own
setting. While a thread is in the call, the kernel defers other work for the socket."""


def first(views: Sequence[memoryview]) -> Sequence[memoryview]:
    """Return the first of *views*, as many as one system call sends."""
    size = 0
    for count, view in enumerate(views[:VIEWS], 1):
        size += view.nbytes
        if size >= _SENT:
            return views[:count]
    return views[:VIEWS]


class Rest:
    """The rest of some views to fill or to send."""

    __slots__ = ("_bytes", "views")

    def __init__(self, views: Sequence[memoryview]) -> None:
        sizes = [view.nbytes for view in views]
        self.views = list(views) if all(sizes) else [view for view in views if view.nbytes]
        self._bytes = sum(sizes)

    def advance(self, done: int) -> None:
        """Pass over the next *done* bytes."""
        self._bytes -= done
        if not self._bytes:  # the usual case: the kernel took all at once
            self.views = []
            return
        passed = 0
        while passed < len(self.views) and done >= self.views[passed].nbytes:
            done -= self.views[passed].nbytes
            passed += 1
        del self.views[:passed]
        if done:
            self.views[0] = self.views[0][done:]
